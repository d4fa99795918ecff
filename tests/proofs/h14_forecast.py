"""What a training on this CPU will need, by the tracker alone; and what to answer when there is a limit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.trace.recorder import WORKSPACE, Allocation, Recording
from foretune.trace.tracing import trace_step
from tests.proofs.h14_cases import Case
from tests.proofs.h14_cells import CellCase

MIB = 2**20
PAGE_BYTES = 4096
MMAP_THRESHOLD_BYTES = 65536
"""What is larger gets pages of its own; the worker's C library is told so, because by itself it moves the threshold."""
_KERNEL_MIB = {
    ("bf16", "matmul"): (0.88, 3.4),
    ("bf16", "conv"): (0.33, 1.5),
    ("fp16", "matmul"): (0.60, 1.6),
    ("fp16", "conv"): (0.25, 1.0),
    ("fp32", "conv"): (0.05, 0.7),
}
"""What a kernel that oneDNN made and keeps takes: in memory, and as memory that is set aside for it. Measured on 16
trainings that are not in the table, as what a process still has when all tensors are gone. The rule was within 12 % for
low types; for convolutions in fp32 it was between 30 MiB too high, with one thread, and 11 MiB too low."""
_SLACK_BYTES = (4 * MIB, 8 * MIB)
"""What a process grows by besides, in memory and set aside: small objects, and code that is read for the first time. -5
to 13 MiB in fp32."""
_BAND_BYTES = 16 * MIB
_KERNEL_BAND = 0.2
_TENSOR_BAND = 0.01

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True)
class Forecast:
    """Bytes of one training."""

    peak_bytes: int
    """Allocated at once, at most, in a step."""
    peak_without_workspaces_bytes: int
    peak_without_releases_bytes: int
    trivial_bytes: int
    """Parameters times bytes: weights, gradients and the optimizer's two averages."""
    growth_bytes: int
    """What the process grows by, from before the model is built to its highest."""
    reserved_bytes: int
    """The same with what is set aside but never written; an operating system's limit counts this."""
    band_bytes: int
    """By how much `reserved_bytes` may be wrong, either way."""

    def verdict(self, limit_bytes: int) -> Verdict:
        if self.reserved_bytes + self.band_bytes <= limit_bytes:
            return "fits"
        return "does not fit" if self.reserved_bytes - self.band_bytes > limit_bytes else "tight"


def forecast(case: Case | CellCase) -> Forecast:
    """The step on fake tensors, for the number of threads that will run it."""
    asked = case.experiment()
    with _threads(case.num_threads):
        traced = trace_step(asked, case.model(), case.sizes(), "cpu")
    width = METHODS[asked.method.kind].load_dtype(PrecisionPolicy.of(asked.train)).itemsize
    frozen = traced.num_params - traced.num_trained_params
    # Where the base is put into fewer bits, it is there in its own before.
    loaded = traced.num_params * width if asked.quantize.denoiser != "none" else 0
    pages = max(loaded, _peak_bytes(traced.recording, in_pages=True))
    kernels = [(num, _KERNEL_MIB[case.precision, kind]) for kind, num in traced.num_cpu_kernels.items()]
    written, reserved = (int(sum(num * mib[i] for num, mib in kernels) * MIB) for i in range(2))
    return Forecast(
        peak_bytes=_peak_bytes(traced.recording),
        peak_without_workspaces_bytes=_peak_bytes(traced.recording, has_workspaces=False),
        peak_without_releases_bytes=_peak_bytes(traced.recording, has_releases=False),
        trivial_bytes=frozen * width + traced.num_trained_params * 16,
        growth_bytes=pages + written + _SLACK_BYTES[0],
        reserved_bytes=pages + reserved + _SLACK_BYTES[1],
        band_bytes=_BAND_BYTES + int(_TENSOR_BAND * pages + _KERNEL_BAND * reserved),
    )


def _peak_bytes(
    recording: Recording, *, in_pages: bool = False, has_workspaces: bool = True, has_releases: bool = True
) -> int:
    live = peak = 0
    alive: dict[int, int] = {}
    for event in recording.events:
        if isinstance(event, Allocation):
            is_counted = has_workspaces or event.operator != WORKSPACE
            size = _in_pages(event.num_bytes) if in_pages else event.num_bytes
            alive[event.number] = size if is_counted else 0
            live += alive[event.number]
            peak = max(peak, live)
        elif has_releases:
            live -= alive.pop(event.number)
    return peak


def _in_pages(num_bytes: int) -> int:
    """As the C library takes it: whole pages, with a header and room to align."""
    taken = num_bytes + 96
    return taken if taken < MMAP_THRESHOLD_BYTES else -(-taken // PAGE_BYTES) * PAGE_BYTES


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
