"""The forecast for one experiment on one kind of device."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from foretune.core.values.base import Part, Upgrade, Value

Verdict = Literal["fits", "tight", "does not fit"]


class PhaseMemory(Part):
    """Memory of one phase of a run (loading, caching, step, validation, saving)."""

    phase: str
    device_bytes_by_part: dict[str, int]
    host_bytes: int | None = None
    disk_bytes: int | None = None

    @property
    def device_bytes(self) -> int:
        return sum(self.device_bytes_by_part.values())


class Tensor(Part):
    """Storages of one size that are alive at the peak."""

    part: str
    num_bytes: int
    """Of one of them."""
    count: int


class Transfers(Part):
    """What one optimizer step moves between host and device."""

    to_host_bytes: int
    to_device_bytes: int
    link: str
    """What connects the two."""
    gb_per_s: float
    """Of the link, one way, by its data sheet, in 10**9 bytes a second."""
    is_link_assumed: bool
    """Whether the catalogue does not say how the device is connected."""
    least_s: float
    """Both ways at once, at that rate; a step that waits for it takes longer by more."""


class HostMemory(Part):
    """What a run takes of the host's memory (RAM) at its peak."""

    peak_phase: str
    bytes_by_part: dict[str, int]
    """Of the likely figure."""
    low_bytes: int
    """Without pages of weight files, which the system can drop and read again."""
    likely_bytes: int
    high_bytes: int
    usable_bytes: int | None = None
    """What the system leaves to the run; None where the host's memory was not given."""
    verdict: Verdict | None = None
    advice: tuple[str, ...] = ()
    """What to do where it does not fit or is tight."""


class Remedy(Part):
    """Settings that would make it fit, or bring it nearer."""

    settings: dict[str, str]
    """By key of the experiment, or by the environment variable to set."""
    saves_bytes: int
    """Of the process's likely memory."""
    extra_flops_share: float
    """How much more is computed for a sample: 0.33 is a third more. Memory that is moved less or more is not in it."""
    moves_bytes: int = 0
    """How much more is moved between host and device in each optimizer step."""
    changes_the_result: bool
    """Whether another model comes out of it, not only another way to the same."""
    verdict: Verdict


def _with_transfers(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 says what is moved between host and device, which before nothing was."""
    remedies = [{**remedy, "moves_bytes": 0} for remedy in body.get("remedies", ())]
    return {**body, "transfers": None, "remedies": remedies}


def _with_host_memory(body: dict[str, Any]) -> dict[str, Any]:
    """Version 3 has what the host needs and warnings about the device, which before were not looked at."""
    return {**body, "host": None, "warnings": ()}


class Plan(Value):
    """Memory by part and phase with an error band, step time, cost, verdict, and what was assumed."""

    upgrades: ClassVar[Mapping[int, Upgrade]] = {1: _with_transfers, 2: _with_host_memory}

    experiment: str
    """Hash of the whole experiment the plan is for."""
    model: str
    device: str
    world_size: int
    sizes: dict[str, int]
    """Of the largest step: samples, pixels, frames, text tokens."""
    phases: tuple[PhaseMemory, ...]
    worst_phase: str
    allocated_bytes: int
    """The most that tensors and workspaces take."""
    reserved_bytes: int
    """The most that the allocator holds for them."""
    process_low_bytes: int
    process_bytes: int
    """With driver and libraries: what a monitor would show for the process; the band is between low and high."""
    process_high_bytes: int
    usable_bytes: int
    """What the device can give to a process."""
    error_band: float
    """The relative part of the band at its high end: 0.05 is 5 % more than the reserved memory. The low end is as far
    below, except for what is not modelled (compiled blocks), which widens the high end alone."""
    verdict: Verdict
    largest: tuple[Tensor, ...] = ()
    """What the worst phase's peak is mostly made of."""
    step_time_s: float | None = None
    """None while the planner cannot say; never a guess."""
    cost_usd: float | None = None
    transfers: Transfers | None = None
    """None where nothing but batches is moved, or where host and device share their memory."""
    host: HostMemory | None = None
    """None where the device computes in the host's memory, so that there is one verdict over both."""
    warnings: tuple[str, ...] = ()
    """What the device does badly or not at all: bf16 on cards without it, float8 products."""
    remedies: tuple[Remedy, ...] = ()
    """Where it does not fit: the cheapest first."""
    smallest_device: str | None = None
    """Where nothing makes it fit: the smallest of the catalogue on which it does as it is."""
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is not in the figures."""
    traces: tuple[str, ...] = Field(default=(), description="which traces it rests on, with what they were made from")
