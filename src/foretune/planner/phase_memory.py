"""The memory of one phase, from its allocations on the device and what it takes of the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from foretune.core.units import MIB
from foretune.core.values.plan import PhaseMemory, Tensor
from foretune.core.vocabulary import RunPhase
from foretune.planner.around import RunToPlan
from foretune.planner.block_events import CUDA_ROUNDING_BYTES, Event
from foretune.planner.live_memory import find_peak
from foretune.planner.pinned import pinned_rounding_bytes
from foretune.planner.streams import Stream

# The program with torch (CPU build), diffusers, transformers and peft imported: 390 MB were measured. The additional
# memory of a build for an accelerator is not included.
_PROCESS_BYTES = 400 * MIB
# Most published checkpoints are stored in half precision; if one is not, its files are twice as large.
FILE_BYTES_PER_WEIGHT = 2
_NUM_LARGEST = 12


@dataclass(frozen=True)
class PhaseHostMemory:
    """The host memory of a phase besides the process itself."""

    num_bytes: int
    mapped_bytes: int = 0
    """The part of it that is pages of weight files."""
    pinned: Sequence[Event] = ()
    """Allocations and releases of the pinned part."""


@dataclass(frozen=True)
class Phase:
    """One phase: its figures, and the allocations behind them."""

    memory: PhaseMemory
    occurs: bool
    events: tuple[Event, ...]
    """Events on an empty device: resident storages are allocated first."""
    disk_bytes_per_sample: int | None = None
    """Set if its disk space grows with the data."""
    notes: tuple[str, ...] = ()
    """What is unknown, and so not in the figures."""
    mapped_bytes: int = 0
    """The part of the host memory that is pages of weight files, which the system can drop and read again."""
    pinned_rounding_bytes: int = 0
    """Host memory beyond `memory.host_bytes`, because pinned blocks are rounded up."""

    @property
    def name(self) -> str:
        return self.memory.phase

    @cached_property
    def largest(self) -> tuple[Tensor, ...]:
        """The storages that take most of the device at the peak."""
        peak = find_peak(self.events, CUDA_ROUNDING_BYTES, _NUM_LARGEST)
        return tuple(Tensor(part=part, num_bytes=size, count=count) for part, size, count in peak.largest)


def loaded(num_bytes: int, bytes_per_weight: int, *, beside_bytes: int = 0) -> PhaseHostMemory:
    """Returns the host memory while weights are loaded.

    Files are memory-mapped: weights in the file's own dtype are its pages, and only those in another dtype are
    additional copies. Measured with 851 MiB of bf16: 860 MiB in bf16, 2,670 MiB in fp32, without the process itself.
    """
    file_bytes = num_bytes // bytes_per_weight * FILE_BYTES_PER_WEIGHT
    copied_bytes = 0 if bytes_per_weight == FILE_BYTES_PER_WEIGHT else num_bytes
    return PhaseHostMemory(file_bytes + copied_bytes + beside_bytes, mapped_bytes=file_bytes)


def absent(name: str, notes: tuple[str, ...] = ()) -> Phase:
    return Phase(PhaseMemory(phase=name, device_bytes_by_part={}), occurs=False, events=(), notes=notes)


def phase_of(
    run: RunToPlan,
    name: str,
    stream: Stream,
    *,
    host: PhaseHostMemory,
    disk_bytes: int | None = 0,
    disk_bytes_per_sample: int | None = None,
    notes: tuple[str, ...] = (),
) -> Phase:
    peak = find_peak(stream.events, CUDA_ROUNDING_BYTES)
    if disk_bytes_per_sample is not None:
        disk_bytes = None if run.num_images is None else disk_bytes_per_sample * _num_encoded(run, run.num_images)
    # If the host is the device, loaded weights are the device's memory; only waiting batches are added.
    is_beside = name == RunPhase.STEP
    with_device_bytes = host.num_bytes + peak.num_bytes if is_beside else max(host.num_bytes, peak.num_bytes)
    memory = PhaseMemory(
        phase=name,
        device_bytes_by_part=dict(sorted(peak.by_category.items(), key=lambda item: -item[1])),
        host_bytes=_PROCESS_BYTES + (with_device_bytes if run.trains_on_host else host.num_bytes),
        disk_bytes=disk_bytes,
    )
    return Phase(
        memory,
        True,
        tuple(stream.events),
        disk_bytes_per_sample,
        tuple(dict.fromkeys(notes)),
        mapped_bytes=host.mapped_bytes,
        pinned_rounding_bytes=pinned_rounding_bytes(host.pinned),
    )


def _num_encoded(run: RunToPlan, num_images: int) -> int:
    """Returns the number of encoded images: a run that is shorter than an epoch encodes only what it will use."""
    steps = run.experiment.train.steps
    return num_images if steps is None else min(num_images, steps * run.experiment.samples_per_step())
