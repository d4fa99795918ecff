"""From the allocator's memory to the process's: what driver and libraries take, and what a device has to give.

Every figure is a row of the catalogue (`foretune.catalog.overheads`) with its source and its spread. Not modelled, and
so not in any figure here: the buffers of collectives between several devices (processes of several ranks were seen to
hold 1.1 to 3.5 GiB beyond the allocator), work memory of convolutions (taken through the allocator for one call and
chosen by the library), compiled graphs, and devices other than NVIDIA's, AMD's, Apple's and CPUs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from foretune.catalog.devices import Device, devices
from foretune.catalog.overheads import Constant, OverheadRow, architecture, overheads
from foretune.core.units import GIB, MIB
from foretune.core.vocabulary import MemoryPart
from foretune.planner.expansion import Event

MOST_FIRST_USE_BYTES = 256 * MIB
"""Kernels that oneDNN makes when a shape is first met, and keeps: up to 3.4 MiB each was measured, for some dozens."""

NUM_MATMUL_THREADS = 2
"""Threads that multiply matrices in a step: the one that runs forward, and autograd's own, which runs backward and
what is recomputed. Each has its own library handle, and each handle its own workspaces."""

_UNIT_BYTES = {"MiB": MIB, "bytes": 1}


@dataclass(frozen=True)
class Range:
    """Bytes: the likely figure between the lowest and the highest that were found."""

    low: int
    likely: int
    high: int
    source: str


@dataclass(frozen=True)
class Overhead:
    """What a training process takes on a device beside the tensors of its step."""

    context: Range
    """Beyond the allocator: driver context, kernels, library handles."""
    driver: Range
    """Kept by the driver out of the total that it reports; part of no process."""
    display: Range
    """Of a desktop that may run on the card."""
    workspaces_bytes: tuple[int, ...]
    """Allocated through the allocator at the first matrix products and kept: part of allocated and reserved."""

    @property
    def allocated_bytes(self) -> int:
        """What the workspaces add to allocated memory."""
        return sum(self.workspaces_bytes)


def overhead_for(device: Device) -> Overhead:
    """What is known about a device."""
    per_thread = [round(_row(device, name).likely) for name in ("blas_workspace", "matmul_workspace")]
    # Where the driver's total is not known the marketed size is read as the smaller of two, which is less than what is
    # left after the driver's part.
    is_reported = device.reported_memory_mib is not None or device.kind == "cpu"
    return Overhead(
        context=_range(device, "context"),
        driver=_range(device, "driver") if is_reported else Range(0, 0, 0, "the size is read low instead"),
        display=_range(device, "display"),
        workspaces_bytes=tuple(num_bytes for num_bytes in per_thread if num_bytes) * NUM_MATMUL_THREADS,
    )


def in_this_process(overhead: Overhead, context_bytes: int) -> Overhead:
    """For a run in a process that holds so much already. Nothing else is guessed: what the system leaves to the process
    was asked for.
    """
    context = Range(context_bytes, context_bytes, context_bytes + MOST_FIRST_USE_BYTES, "measured in this process")
    nothing = Range(0, 0, 0, "in what is left")
    return replace(overhead, context=context, driver=nothing, display=nothing)


def usable_bytes(device: Device) -> int:
    """What one process can have of one logical device, its own context included: likely, not least.

    NVIDIA and AMD: what the driver reports less what it keeps. Apple: what the system recommends a GPU to hold; torch
    allows 1.7 times that, but the system then swaps. CPU: memory less the system's.
    """
    if device.kind == "mps":
        # Memory of computers is sold in units of 2**30.
        return round(device.memory_gb * GIB * _row(device, "working_set").likely)
    total_bytes = round(device.memory_gb * GIB) if device.kind == "cpu" else device.memory_bytes
    return total_bytes // device.num_logical_devices - overhead_for(device).driver.likely


def host_runtime(device: Device) -> Range:
    """What using the device takes of the host's memory: driver, runtime and library handles."""
    return _range(device, "host_runtime")


def other_programs_on_host() -> Range:
    """What the operating system and other programs take of the host's memory."""
    cpu = next(row for row in devices().values() if row.kind == "cpu")
    return _range(cpu, "driver")


def with_workspaces(events: Iterable[Event], overhead: Overhead) -> Iterator[Event]:
    """The events of a step behind those of the workspaces, which outlive it."""
    for number, num_bytes in enumerate(overhead.workspaces_bytes, start=1):
        yield Event(-number, num_bytes, MemoryPart.WORKSPACE, "load")
    yield from events


def _range(device: Device, constant: Constant) -> Range:
    row = _row(device, constant)
    unit_bytes = _UNIT_BYTES[row.unit]
    low, likely, high = (round(figure * unit_bytes) for figure in (row.low, row.likely, row.high))
    return Range(low, likely, high, row.source)


def _row(device: Device, constant: Constant) -> OverheadRow:
    """The most exact row: by name, else by architecture, else by kind."""
    rows = {name: row for row in overheads() if row.constant == constant for name in row.applies_to}
    for name in (device.name, architecture(device), device.kind):
        if name in rows:
            return rows[name]
    raise AssertionError(f"the catalogue has no {constant} for {device.name}")
