"""What is asked of a device's speed. Tables, data sheets and calibration each answer it in their own way."""

from typing import Literal, Protocol

from foretune.planner.timing.host_operators import Issuer

Evidence = Literal["measured here", "kernel tables", "data sheet"]
"""measured here: `foretune calibrate` ran on this machine. kernel tables: published kernel times of this device.
data sheet: peaks of the vendor, with the efficiency that devices with tables reach at the same shape."""

Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]
ProductFormat = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
"""The number format that a matrix product computes in. fp8 includes the quantisation of the activation; int8 does not.
"""


class NotKnown(Exception):
    """Raised if the device's speed at something is not known; its text says what is missing."""


class DeviceSpeed(Protocol):
    """Times of kernels on one device, in seconds, without the host's time to launch them."""

    @property
    def evidence(self) -> Evidence: ...

    def product_s(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        """`batch` products of [m, k] and [k, n], in one kernel. TF32 is fp32 on devices without it."""

    def convolution_s(
        self, products: float, batch: float, m: float, n: float, k: float, number_format: ProductFormat
    ) -> float:
        """A convolution as the products that it amounts to: one forward, up to two backward."""

    def attention_s(
        self,
        batch: float,
        heads: float,
        queries: float,
        keys: float,
        head_dim: float,
        *,
        is_backward: bool,
        is_masked: bool = False,
    ) -> float:
        """Fused bidirectional attention in 16 bits. The backward pass is a kernel of its own. With a mask, kernels run
        that take one.
        """

    def bytes_s(self, num_bytes: float) -> float:
        """A memory-bound kernel that reads and writes this much in total."""

    def host_bytes_s(self, num_bytes: float) -> float:
        """The host's CPU reads and writes this much in total in its own memory: an offloaded optimizer."""

    def launch_s(
        self, *, has_adapters: bool = False, is_recomputed: bool = False, issued_by: Issuer = "modules"
    ) -> float:
        """Host time to dispatch one operator of eager PyTorch with autograd.

        `has_adapters`: of a model with adapters. `is_recomputed`: in a block with gradient checkpointing, where hooks
        run for each tensor that is saved. What was measured may not tell apart who issues an operator.
        """

    def update_s(self) -> float:
        """Host time of the update for each trained tensor, beyond what operators of the trace take."""

    def copy_s(self, num_bytes: float) -> float:
        """A copy between pinned host memory and the device, one way."""

    def collective_s(self, kind: Collective, num_bytes: float, num_devices: int) -> float:
        """Among devices of one machine. `num_bytes` is the whole buffer: for all_gather the gathered result, for
        reduce_scatter the input.
        """
