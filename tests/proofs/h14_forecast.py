"""What a training on this CPU will need, by the tracker alone; and what the plan answers when there is a limit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from foretune import catalog
from foretune.planner.block_events import Event
from foretune.planner.overheads import in_this_process, overhead_for
from foretune.planner.verdict import Judgement, judge
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.trace.recorder import WORKSPACE, Allocation, Recording
from foretune.trace.tracing import trace_step
from tests.proofs.h14_cases import Case
from tests.proofs.h14_cells import CellCase

MIB = 2**20
PAGE_BYTES = 4096
MMAP_THRESHOLD_BYTES = 65536
"""What is larger gets pages of its own; set in the worker's C library, which by itself moves the threshold."""
_KERNEL_MIB = {
    ("bf16", "matmul"): 0.88,
    ("bf16", "conv"): 0.33,
    ("fp16", "matmul"): 0.60,
    ("fp16", "conv"): 0.25,
    ("fp32", "conv"): 0.05,
}
"""What a kernel that oneDNN made and keeps takes in memory: for the process's high-water mark. Measured on 16
trainings that are not in the table, as what a process still has when all tensors are gone. The rule was within 12 % for
low types; for convolutions in fp32 it was between 30 MiB too high, with one thread, and 11 MiB too low."""
_SLACK_BYTES = 4 * MIB
"""What a process grows by besides: small objects, and code that is read for the first time. -5 to 13 MiB in fp32."""
_ENDLESS_BYTES = 2**50
_VERDICTS = ("fits", "tight", "does not fit")


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


@dataclass(frozen=True)
class Planned:
    """A training as the plan judges it: what is allocated, in stretches between which everything is given back."""

    stretches: tuple[tuple[Event, ...], ...]

    def on(self, limit_bytes: int) -> Judgement:
        """By the plan, for a process that may grow by this much; what it holds before is not counted."""
        cpu = next(device for device in catalog.devices().values() if device.kind == "cpu")
        overhead = in_this_process(overhead_for(cpu), 0)
        judged = [judge(events, overhead, limit_bytes, is_headless=True) for events in self.stretches]
        return max(judged, key=lambda one: (_VERDICTS.index(one.verdict), one.process.high))

    def low_bytes(self) -> int:
        """The least that the plan does not refuse at once."""
        return self.on(0).process.low

    def high_bytes(self) -> int:
        """From here on the plan says that it fits."""
        return self.on(_ENDLESS_BYTES).process.high


def forecast(case: Case | CellCase) -> tuple[Forecast, Planned]:
    """The step on fake tensors, for the number of threads that will run it."""
    asked = case.experiment()
    with _threads(case.num_threads):
        traced = trace_step(asked, case.model(), case.sizes(), "cpu")
    width = METHODS[asked.method.kind].load_dtype(PrecisionPolicy.of(asked.train)).itemsize
    frozen = traced.num_params - traced.num_trained_params
    # Where the base is put into fewer bits, it is there in its own before.
    loaded = traced.num_params * width if asked.quantize.denoiser != "none" else 0
    pages = max(loaded, _peak_bytes(traced.recording, in_pages=True))
    kernels_mib = sum(num * _KERNEL_MIB[case.precision, kind] for kind, num in traced.num_cpu_kernels.items())
    numbers = Forecast(
        peak_bytes=_peak_bytes(traced.recording),
        peak_without_workspaces_bytes=_peak_bytes(traced.recording, has_workspaces=False),
        peak_without_releases_bytes=_peak_bytes(traced.recording, has_releases=False),
        trivial_bytes=frozen * width + traced.num_trained_params * 16,
        growth_bytes=pages + int(kernels_mib * MIB) + _SLACK_BYTES,
    )
    loading = ((Event(0, loaded, "frozen weights", "loading"),),) if loaded else ()
    return numbers, Planned((*loading, tuple(_events(traced.recording))))


def _events(recording: Recording) -> Iterator[Event]:
    """What the recorder saw, as the plan has it."""
    empty: set[int] = set()
    for event in recording.events:
        if isinstance(event, Allocation):
            if event.num_bytes:
                yield Event(event.number, event.num_bytes, "", "step")
            else:
                empty.add(event.number)
        elif event.number not in empty:
            yield Event(event.number, 0, "", "step")


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
