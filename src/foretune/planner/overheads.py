"""The memory of driver and libraries beyond the allocator's, and the usable memory of a device.

Every figure is a row of the catalogue (`foretune.catalog.overheads`) with its source and its spread. Not modelled, and
so not in any figure here: buffers of collectives between several devices (processes of several ranks held 1.1 to 3.5
GiB beyond the allocator), workspaces of convolutions (allocated for one call and chosen by the library), compiled
graphs, and devices other than NVIDIA's, AMD's, Apple's and CPUs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from foretune.catalog.devices import HERE, Device, devices
from foretune.catalog.overheads import Constant, OverheadRow, architecture, overheads
from foretune.core.units import GIB, MIB
from foretune.core.vocabulary import MemoryPart, RunPhase, StepPhase
from foretune.planner.block_events import Event

MOST_FIRST_USE_BYTES = 256 * MIB
"""Kernels that oneDNN builds and caches when a shape first occurs: up to 3.4 MiB each was measured, for some dozens."""

NUM_MATMUL_THREADS = 2
"""Threads that multiply matrices in a step: the main thread runs forward, and autograd's thread runs backward and
recomputation. Each has its own library handle, and each handle its own workspaces.
"""

_WITHOUT_PRODUCTS = ("setup", RunPhase.LOAD, StepPhase.INPUTS)
"""Phases in which no matrices are multiplied."""

_UNIT_BYTES = {"MiB": MIB, "bytes": 1}


@dataclass(frozen=True)
class Range:
    """Bytes: the likely figure and the lowest and highest that were found."""

    low: int
    likely: int
    high: int
    source: str


@dataclass(frozen=True)
class Overhead:
    """Device memory of a training process besides the tensors of its step."""

    context: Range
    """Beyond the allocator: driver context, kernels, library handles."""
    driver: Range
    """Kept by the driver from the total that it reports; not part of any process."""
    display: Range
    """Used by a desktop that may run on the card."""
    workspaces_bytes: tuple[int, ...]
    """Allocated through the allocator at the first matrix products and cached: part of allocated and reserved."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes that the workspaces add to allocated memory."""
        return sum(self.workspaces_bytes)


def overhead_for(device: Device, *, shares_workspace: bool = True) -> Overhead:
    """Returns the known overheads of a device.

    `shares_workspace`: cuBLASLt uses the workspace of cuBLAS, as in current releases of torch. In earlier ones it has
    its own.
    """
    matmul = _row(device, "matmul_workspace")
    per_thread = [
        round(_row(device, "blas_workspace").likely),
        round(matmul.likely if shares_workspace else matmul.high),
    ]
    # If the driver's total is unknown, the marketed size is read as the smaller of two units, which is less than what
    # remains after the driver's part.
    is_reported = device.reported_memory_mib is not None or device.kind == "cpu"
    if device.name == HERE and is_reported:
        # On a CPU what is free; on a GPU the total that torch reports, from which the driver has taken its part.
        driver = Range(0, 0, 0, "the memory was measured")
    else:
        driver = _range(device, "driver") if is_reported else Range(0, 0, 0, "the size is read low instead")
    return Overhead(
        context=_range(device, "context"),
        driver=driver,
        display=_range(device, "display"),
        workspaces_bytes=tuple(num_bytes for num_bytes in per_thread if num_bytes) * NUM_MATMUL_THREADS,
    )


def in_this_process(overhead: Overhead, context_bytes: int) -> Overhead:
    """Returns the overhead of a run in a process that already uses `context_bytes`. Nothing else is assumed, because
    the available memory was measured.
    """
    context = Range(context_bytes, context_bytes, context_bytes + MOST_FIRST_USE_BYTES, "measured in this process")
    nothing = Range(0, 0, 0, "in what is left")
    return replace(overhead, context=context, driver=nothing, display=nothing)


def usable_bytes(device: Device) -> int:
    """Returns the likely memory that one process can use on one logical device, including its context.

    NVIDIA and AMD: the driver's total minus what it reserves. Apple: the recommended working set of the GPU; torch
    allows 1.7 times that, but the system then swaps. CPU: memory minus the system's.
    """
    if device.kind == "mps":
        # RAM is sold in units of 2**30.
        return round(device.memory_gb * GIB * _row(device, "working_set").likely)
    total_bytes = round(device.memory_gb * GIB) if device.kind == "cpu" else device.memory_bytes
    return total_bytes // device.num_logical_devices - overhead_for(device).driver.likely


def host_runtime(device: Device) -> Range:
    """Returns the host memory for using the device: driver, runtime and library handles."""
    return _range(device, "host_runtime")


def other_programs_on_host() -> Range:
    """Returns the host memory of the operating system and other programs."""
    cpu = next(row for row in devices().values() if row.kind == "cpu")
    return _range(cpu, "driver")


def with_workspaces(events: Sequence[Event], overhead: Overhead, *, at_first_use: bool = False) -> Iterator[Event]:
    """Yields the events with the workspaces, which outlive the step: before all of them, or where each thread first
    multiplies matrices.

    Where they are decides which free blocks are left: this changes a peak by up to 1 MiB for each.
    """
    num_per_thread = len(overhead.workspaces_bytes) // NUM_MATMUL_THREADS
    main = _first(events, lambda phase: phase not in _WITHOUT_PRODUCTS) if at_first_use else 0
    autograd = _first(events, lambda phase: phase == StepPhase.BACKWARD) if at_first_use else 0
    done = 0
    for place, first in ((main, 0), (autograd, num_per_thread)):
        if place < len(events):
            yield from islice(events, done, place)
            done = place
            for index in range(first, first + num_per_thread):
                yield Event(-1 - index, overhead.workspaces_bytes[index], MemoryPart.WORKSPACE, events[place].phase)
    yield from islice(events, done, None)


def _first(events: Sequence[Event], is_wanted: Callable[[str], bool]) -> int:
    """Returns the place of the first event of such a phase, or the number of events."""
    wanted = {phase: is_wanted(phase) for phase in {event.phase for event in events}}
    return next((place for place, event in enumerate(events) if wanted[event.phase]), len(events))


def _range(device: Device, constant: Constant) -> Range:
    row = _row(device, constant)
    unit_bytes = _UNIT_BYTES[row.unit]
    low, likely, high = (round(figure * unit_bytes) for figure in (row.low, row.likely, row.high))
    return Range(low, likely, high, row.source)


def _row(device: Device, constant: Constant) -> OverheadRow:
    """Returns the most specific row: by name, else by architecture, else by kind."""
    rows = {name: row for row in overheads() if row.constant == constant for name in row.applies_to}
    for name in (device.row_name, architecture(device), device.kind):
        if name in rows:
            return rows[name]
    raise AssertionError(f"the catalogue has no {constant} for {device.name}")
