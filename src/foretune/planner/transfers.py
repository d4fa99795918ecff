"""The traffic between host and device in each step, and its minimum time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from foretune.catalog.devices import Device, LinkedDevice
from foretune.choices.experiment import Experiment
from foretune.core.values.plan import Transfers
from foretune.core.values.step_trace import TO_DEVICE, TO_HOST
from foretune.core.vocabulary import MemoryPart, StepPhase
from foretune.planner.block_events import Sizes
from foretune.planner.expansion import StepEvents
from foretune.planner.swapping import SwappedUnit, copied_bytes
from foretune.planner.traces import Mixed, work_of

_NEWER_LINK = "PCIe 5.0 x16"
_NEWER_GB_PER_S = 64.0
_WITH_NEWER_LINK = ("Hopper", "Blackwell", "CDNA3", "CDNA4")
"""Beginnings of architectures whose data sheets name PCIe 5.0 beside NVLink or Infinity Fabric (general knowledge)."""
ASSUMED_LINK = "PCIe 4.0 x16"
_ASSUMED_GB_PER_S = 32.0
"""One way, as the catalogue states it for the cards that have this link."""


@dataclass(frozen=True)
class Moved:
    """Bytes over the bus in one optimizer step, without input batches."""

    to_host_bytes: int = 0
    to_device_bytes: int = 0
    swapped_bytes: int = 0
    """The part of `to_device_bytes` that is weights of swapped blocks, which may be copied beside computation."""

    @property
    def total_bytes(self) -> int:
        return self.to_host_bytes + self.to_device_bytes


NOTHING_MOVED = Moved()


def moved_in_a_step(
    mixed: Mixed, experiment: Experiment, sizes: Sizes, step: StepEvents, swapped: Sequence[SwappedUnit] = ()
) -> Moved:
    """Returns gradients and updates as in the trace; the rest from the storages on the host, and from swapped blocks.

    Activations go to the host in the forward pass and return in the backward pass. Neighbouring blocks share some of
    them, so they are counted by storage, not by block.
    """
    num_passes = experiment.train.gradient_accumulation
    work: Counter[tuple[str, str]] = Counter()
    for found, count in work_of(mixed):
        if found.operator in (TO_HOST, TO_DEVICE):
            work[found.phase, found.operator] += round(found.bytes_moved.at(sizes) * count)
    activations = sum(event.num_bytes for event in step.on_host if event.phase == StepPhase.FORWARD)
    by_blocks = work[StepPhase.FORWARD, TO_HOST]
    swapped_bytes = copied_bytes(mixed.kept, sizes, swapped)
    average = 0
    if experiment.train.ema is not None and experiment.levers.ema_offload:
        average = sum(event.num_bytes for event in step.lasting if event.category == MemoryPart.TRAINED_WEIGHTS)
    to_host = activations + work[StepPhase.BACKWARD, TO_HOST]
    to_device = (
        activations
        + work[StepPhase.FORWARD, TO_DEVICE]
        + work[StepPhase.BACKWARD, TO_DEVICE]
        - by_blocks
        + swapped_bytes
    )
    return Moved(
        to_host_bytes=num_passes * to_host + work[StepPhase.OPTIMIZER, TO_HOST] + average,
        to_device_bytes=num_passes * to_device + work[StepPhase.OPTIMIZER, TO_DEVICE],
        swapped_bytes=num_passes * swapped_bytes,
    )


@dataclass(frozen=True)
class HostLink:
    """The link between a device and its host."""

    name: str
    gb_per_s: float
    """One way, by the data sheet."""
    is_assumed: bool


def host_link(device: Device) -> HostLink:
    """Returns the card's PCIe link; the assumed one where the catalogue states another interconnect, or none."""
    if isinstance(device, LinkedDevice):
        return HostLink(device.host_link, device.host_gb_per_s, is_assumed=False)
    both_ways = device.interconnect_bidirectional_gb_per_s
    if device.interconnect.startswith("PCIe") and both_ways is not None:
        return HostLink(device.interconnect.partition(" (")[0], both_ways / 2, is_assumed=False)
    if device.arch.startswith(_WITH_NEWER_LINK):
        return HostLink(_NEWER_LINK, _NEWER_GB_PER_S, is_assumed=True)
    return HostLink(ASSUMED_LINK, _ASSUMED_GB_PER_S, is_assumed=True)


def transfers_on(moved: Moved, device: Device) -> Transfers | None:
    """Returns the transfers over the device's link; None if nothing is moved, or host and device share their memory."""
    if not moved.total_bytes or device.kind in ("cpu", "mps"):
        return None
    link = host_link(device)
    # Both directions at once, at the data sheet's rate.
    least_s = max(moved.to_host_bytes, moved.to_device_bytes) / (link.gb_per_s * 1e9)
    return Transfers(
        to_host_bytes=moved.to_host_bytes,
        to_device_bytes=moved.to_device_bytes,
        link=link.name,
        gb_per_s=link.gb_per_s,
        is_link_assumed=link.is_assumed,
        least_s=least_s,
    )
