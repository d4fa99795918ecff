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
    assumptions: tuple[str, ...] = ()
