"""The forecast for one experiment on one kind of device."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from foretune.core.values.base import Part, Upgrade, Value
from foretune.core.values.plan_time import JobCost, RunOrRuns, StepTime

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


RemedyKind = Literal[
    "recompute",
    "quantised base",
    "host memory",
    "lighter optimizer",
    "smaller input",
    "adapter",
    "larger batch",
    "less checkpointing",
    "other",
]
"""What a remedy mainly does.

recompute: the same result from more computation or smaller passes, without host traffic. host memory: the same result,
with tensors that wait on the host. adapter: LoRA instead of full fine-tuning. larger batch and less checkpointing use
memory that is left. other: written by a release that did not say.
"""


class Remedy(Part):
    """Settings that change how much memory a run takes, with what they cost."""

    kind: RemedyKind
    settings: dict[str, str]
    """By key of the experiment, or by the environment variable to set."""
    process_bytes: int | None
    """Estimated memory of the process with these settings; None where an earlier release did not say."""
    saves_bytes: int
    """Of the process's estimated memory; negative where the settings use memory that is left."""
    extra_flops_share: float
    """How much more is computed for a sample: 0.33 is a third more. Host traffic is not in it."""
    moves_bytes: int = 0
    """How much more is moved between host and device in each optimizer step."""
    least_transfer_s: float | None = None
    """The least time in which the device's link moves all that a step then moves; None where nothing is moved."""
    hidden_copy_share: float | None = None
    """How much of the time of all copies is hidden behind computation; None where it is not known."""
    hidden_copy_s: float | None = None
    """The hidden time itself, for the samples of a step of the plan."""
    slowdown_s: float | None = None
    """How much longer the same number of samples takes, in seconds for each step of the plan; negative if it is faster.
    None where it is not known."""
    slowdown_share: float | None = None
    """The same as a share of the plan's step: 0.18 is 18 % more."""
    changes_the_result: bool
    """Whether another model comes out of it, not only another way to the same."""
    verdict: Verdict
    host_bytes: int | None = None
    """Estimated host memory with these settings; None where it was not asked for and nothing moves to the host."""
    host_verdict: Verdict | None = None
    """None where the host's memory was not given."""


class ValidationMemory(Part):
    """The process with validation in it. A validation that runs out of memory is skipped; it does not stop a run."""

    allocated_bytes: int
    reserved_bytes: int
    process_low_bytes: int
    process_bytes: int
    process_high_bytes: int
    verdict: Verdict
    settings: dict[str, str] = Field(default_factory=dict)
    """What makes it fit where it does not; empty where it fits or nothing was found."""


class CommandMemory(Part):
    """A command after the training (evaluate, sample, export), in a process of its own."""

    command: str
    phases: tuple[PhaseMemory, ...]
    worst_phase: str
    """The phase with the most device memory, of those that must fit."""
    process_low_bytes: int
    process_bytes: int
    """On the device, with driver and libraries; 0 for a command that does not need it."""
    process_high_bytes: int
    verdict: Verdict
    """Of the device's memory."""
    host: HostMemory | None = None
    """None where the device computes in the host's memory."""
    left_out: tuple[str, ...] = ()
    """Phases that do not fit and are left out: the rest of the command succeeds without them."""
    settings: dict[str, str] = Field(default_factory=dict)
    """What makes it fit, or tight, where it does not; empty where it fits or nothing was found."""
    verdict_with_settings: Verdict | None = None


def _with_transfers(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 says what is moved between host and device, which before nothing was."""
    remedies = [{**remedy, "moves_bytes": 0} for remedy in body.get("remedies", ())]
    return {**body, "transfers": None, "remedies": remedies}


def _with_kinds(body: dict[str, Any]) -> dict[str, Any]:
    """Version 3 says what each remedy does and needs, keeps validation apart, and advises on memory that is left.

    It also has what the host needs and warnings about the device, which before were not looked at.
    """
    remedies = [
        {**remedy, "kind": "other", "process_bytes": None, "least_transfer_s": None}
        for remedy in body.get("remedies", ())
    ]
    return {**body, "remedies": remedies, "headroom": (), "validation": None, "host": None, "warnings": ()}


def _with_host_memory_of_remedies(body: dict[str, Any]) -> dict[str, Any]:
    """Version 3 did not say how much host memory its remedies take."""
    return body


def _with_times(body: dict[str, Any]) -> dict[str, Any]:
    """Version 4 had fields for a time and a price, which were never filled."""
    kept = {key: value for key, value in body.items() if key not in ("step_time_s", "cost_usd")}
    return {**kept, "time": None, "no_time": "the plan was made by an earlier release", "cost": None, "no_cost": None}


def _with_hidden_copies_and_several_devices(body: dict[str, Any]) -> dict[str, Any]:
    """Until version 5 all copies between host and device were waited for. A plan did not say how several devices are
    connected, compare one run with several, or know spot instances.
    """
    return body


def _with_commands(body: dict[str, Any]) -> dict[str, Any]:
    """Version 6 did not plan what follows a training, or know drivers that move memory to the host."""
    return body


class Plan(Value):
    """Memory by part and phase with an error band, step time, cost, verdict, and what was assumed."""

    upgrades: ClassVar[Mapping[int, Upgrade]] = {
        1: _with_transfers,
        2: _with_kinds,
        3: _with_host_memory_of_remedies,
        4: _with_times,
        5: _with_hidden_copies_and_several_devices,
        6: _with_commands,
    }

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
    """Of everything that must succeed for the run to train: caching, loading, training steps, saving."""
    largest: tuple[Tensor, ...] = ()
    """What the worst phase's peak is mostly made of."""
    time: StepTime | None = None
    """None where something of it is not known; never a guess."""
    no_time: str | None = None
    """Why there is no time."""
    cost: JobCost | None = None
    no_cost: str | None = None
    """Why there is no cost, where the time is known."""
    connection: tuple[str, ...] = ()
    """Of several devices: how they are connected, in words; empty where it is not known."""
    run_or_runs: RunOrRuns | None = None
    """None for one device, and where a time is not known."""
    transfers: Transfers | None = None
    """None where nothing but batches is moved, or where host and device share their memory."""
    validation: ValidationMemory | None = None
    """None where the run does not validate, or where an earlier release counted validation with the rest."""
    host: HostMemory | None = None
    """None where the device computes in the host's memory, so that there is one verdict over both."""
    commands: tuple[CommandMemory, ...] = ()
    """What follows the training; empty for a training of another program. Not in the verdict."""
    pages_to_host: bool = False
    """Whether the device's driver moves memory to the host instead of failing when the device is full."""
    warnings: tuple[str, ...] = ()
    """What the device does badly or not at all: bf16 on cards without it, float8 products."""
    remedies: tuple[Remedy, ...] = ()
    """Where it does not surely fit: what makes it fit, what an expert would do first."""
    headroom: tuple[Remedy, ...] = ()
    """Where it fits: how to use the memory that is left."""
    smallest_device: str | None = None
    """Where it does not surely fit: the smallest device of the catalogue on which it does, unchanged."""
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is not in the figures."""
    traces: tuple[str, ...] = Field(default=(), description="which traces it rests on, with what they were made from")

    @property
    def at_peak(self) -> "Plan | ValidationMemory":
        """Whichever takes more, training or training with validation: what a whole run is measured against."""
        if self.validation is not None and self.validation.process_bytes > self.process_bytes:
            return self.validation
        return self
