"""How long a planned step takes, and what the whole job costs."""

from typing import Literal

from foretune.core.values.base import Part

Resource = Literal["compute", "bandwidth", "host", "bus", "input", "communication"]
"""What a step waits for. host: operators that the CPU has not issued yet, and what it computes itself. bus: copies
between host and device. input: batches that are not ready."""
TimeEvidence = Literal["measured here", "kernel tables", "data sheet"]


class StepTime(Part):
    """One optimizer step."""

    step_s: float
    low_s: float
    high_s: float
    shares: dict[Resource, float]
    """What the step waits for; they add up to one."""
    bound_by: Resource
    """The largest share."""
    evidence: TimeEvidence
    """What the device's speed is from; it decides how wide the band is."""
    samples_per_s: float
    """Over all devices."""
    model_flops: float
    """What the model needs for a step on each device; what is recomputed counts once."""
    hardware_flops: float
    model_utilisation: float | None
    """Share of the device's peak; None where the catalogue has no peak for this dtype."""
    hardware_utilisation: float | None
    """The same with what is recomputed."""
    hidden_copy_s: float = 0.0
    """Copies between host and device that run beside computation. What the step waits for is the share of the bus."""

    @property
    def hidden_copy_share(self) -> float | None:
        """Of the time of all copies; None where nothing is copied."""
        copies_s = self.hidden_copy_s + self.shares.get("bus", 0.0) * self.step_s
        return self.hidden_copy_s / copies_s if copies_s > 0 else None


class SpotCost(Part):
    """The whole job on spot instances, which may be taken away at any time."""

    interruptions_per_day: float
    """Of one machine, as given."""
    num_machines: int
    wait_s: float
    """Until the next instance starts, as given. It is not paid."""
    save_every: int | None
    """Steps between checkpoints, as in the experiment; None is only after the last step."""
    expected_s: float | None
    """With waiting and work that is done again; None where the job practically never ends."""
    interruptions: float | None
    """Expected in the whole job."""
    again_s: float | None
    """Expected time of restarts and of work that is done again."""
    usd: float | None
    usd_per_hour: float
    """Of one device."""
    best_save_every: int | None
    """Steps between checkpoints that cost least by Young's and Daly's rule; None where a step has no number."""
    best_expected_s: float | None
    best_usd: float | None


class RunOrRuns(Part):
    """One run on several devices beside as many runs of the same training at once, each on one device."""

    num_devices: int
    one_run_s: float
    """The whole job on all devices."""
    one_run_usd: float | None
    single_s: float
    """The whole job on one device; side by side all of them end after it."""
    single_usd: float | None
    single_fits: bool
    single_bytes: int
    """Estimated memory of the process on one device."""
    settings: dict[str, str]
    """With which a run on one device has as many samples in an optimizer step."""
    samples_per_step: int
    """Of both."""
    samples_as_is: int | None
    """Samples of a step on one device without these settings; None where they were searched for."""
    reason: str | None
    """What keeps one run from being as many times as fast as there are devices; None if it is nearly that."""

    @property
    def speedup(self) -> float:
        """How many times as soon the one run has its result."""
        return self.single_s / self.one_run_s

    @property
    def results_of_runs(self) -> float:
        """Results that runs side by side give in the time of one that one run after the other gives."""
        return self.num_devices / self.speedup


class JobCost(Part):
    """The whole job, from the rent of the device to the last checkpoint. None is "not known" and not in the total."""

    num_steps: int | None
    """None where the length of the training is a time."""
    set_up_s: float
    """Start of the program, and reading weights from the disk."""
    download_s: float
    caching_s: float | None
    training_s: float
    validation_s: float | None
    saves_s: float
    total_s: float
    low_s: float
    """The total with the low end of the step time."""
    high_s: float
    energy_wh: float | None
    """Of the devices alone; None where the catalogue has no power limit."""
    usd: float | None
    usd_per_hour: float | None
    """Of one device."""
    price_source: str
    """Where the price is from, or why there is none."""
    is_price_given: bool
    """Whether the user gave the price."""
    spot: SpotCost | None = None
    """None where spot instances were not requested."""
    assumptions: tuple[str, ...] = ()
