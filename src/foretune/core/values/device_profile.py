"""How fast one device of one machine is, as `foretune calibrate` measured it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from foretune.core.values.base import Part, Upgrade, Value

MeasuredFormat = Literal["fp32", "tf32", "bf16", "fp16"]
"""The number formats whose kernels are measured."""
MemoryOperator = Literal["add", "layer_norm", "gelu", "cast"]
"""The memory-bound kernels that are measured."""
CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter"]

BUSY_SPREAD = 0.3
"""Median spread of the points above which the machine was busy. On an idle machine it is below 0.15."""


class KernelTime(NamedTuple):
    """The fastest of several samples, without the host's time to dispatch the kernel.

    Other programs only ever add time, so the fastest sample is the closest to an idle machine.
    """

    seconds: float
    spread: float
    """Median of the samples divided by the fastest, minus one: 0.1 where half of them took 10 % longer or more."""


class ProductPoint(NamedTuple):
    """`batch` products of [m, k] and [k, n] in one kernel; mean over the layouts of a layer's forward and backward."""

    number_format: MeasuredFormat
    batch: int
    m: int
    n: int
    k: int
    timing: KernelTime


class ConvolutionPoint(NamedTuple):
    """A convolution as the product it amounts to, which runs forward, or twice backward."""

    number_format: MeasuredFormat
    m: int
    """Output pixels of all images."""
    n: int
    """Output channels."""
    k: int
    """Input channels times the size of the kernel."""
    is_backward: bool
    timing: KernelTime


class AttentionPoint(NamedTuple):
    """Fused attention of `heads` heads, those of all samples together."""

    number_format: MeasuredFormat
    heads: int
    queries: int
    keys: int
    head_dim: int
    is_backward: bool
    timing: KernelTime


class MemoryPoint(NamedTuple):
    """A memory-bound kernel that reads and writes this much in total."""

    operator: MemoryOperator
    num_bytes: int
    timing: KernelTime


class CopyPoint(NamedTuple):
    """A copy between pinned host memory and the device: the slower of the two directions."""

    num_bytes: int
    timing: KernelTime


class CollectivePoint(NamedTuple):
    """Among devices of this machine. `num_bytes` is the whole buffer."""

    kind: CollectiveName
    num_devices: int
    num_bytes: int
    timing: KernelTime


class Dispatch(Part):
    """The host's time for one operator, on one thread."""

    call: KernelTime
    """Calling an operator from Python without autograd. It is subtracted from the times of kernels on a CPU."""
    backward_call: KernelTime
    """Calling autograd for one operator. It is subtracted from backward passes on a CPU."""
    with_autograd: KernelTime
    """Mean over the operators, views included, of forward and backward pass of a transformer block whose tensors are
    so small that computing them takes no time.
    """
    recomputed: KernelTime | None = None
    """The same in a block with gradient checkpointing; None where an earlier release measured."""
    with_adapters: KernelTime | None = None
    """The same with a LoRA on each layer, which computes much in Python; None where an earlier release measured."""
    recomputed_with_adapters: KernelTime | None = None
    update: KernelTime | None = None
    """Clipping, AdamW's update and forgetting the gradient, for each trained tensor."""


def _with_more_dispatch(body: dict[str, Any]) -> dict[str, Any]:
    """Version 1 measured neither recomputed blocks, nor adapters, nor the update: what was not measured is absent."""
    return body


class DeviceProfile(Value):
    """Times of kernels on one device with one number of threads."""

    upgrades: ClassVar[Mapping[int, Upgrade]] = {1: _with_more_dispatch}

    device: str
    """The device's name as its driver or the system reports it."""
    kind: Literal["cuda", "rocm", "mps", "cpu"]
    """cpu: the host's time to dispatch operators adds to that of kernels, because the same cores do both."""
    num_threads: int
    """Threads that the CPU computes with."""
    is_default_threads: bool
    """Whether this is what torch or OMP_NUM_THREADS decided, not `--threads`."""
    host: str
    """Hash of the machine's processor and their number: profiles of another machine are not used."""
    torch: str
    measured_at: str
    """Date and time in UTC, ISO 8601."""
    took_s: float
    num_rounds: int
    """How often each point was measured, if time allowed."""
    products: tuple[ProductPoint, ...]
    convolutions: tuple[ConvolutionPoint, ...]
    attention: tuple[AttentionPoint, ...]
    memory: tuple[MemoryPoint, ...]
    dispatch: Dispatch
    copies: tuple[CopyPoint, ...] = ()
    collectives: tuple[CollectivePoint, ...] = ()
    slow_formats: tuple[MeasuredFormat, ...] = ()
    """Number formats that are so slow here that only a few products were measured."""
    spread: float
    """Median of the spreads of all points."""
    is_busy: bool = False
    """Whether other programs slowed the measurement down."""
    warnings: tuple[str, ...] = ()
