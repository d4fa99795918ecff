"""A job on spot instances: how often it is interrupted, what it does again, and how often it should save.

Interruptions are a Poisson process while an instance runs, so that the past of an instance says nothing about its
future. A stretch of work of length s that has to be complete before it counts, with r to restart after an interruption,
then takes exp(rate r) (exp(rate s) - 1) / rate on average (Daly 2006, "A higher order estimate of the optimum
checkpoint interval for restart dumps"). A job is the sum of its stretches: the set-up with download and caching, and
the steps up to each checkpoint. Waiting for another instance adds to the time, not to the price.
"""

import math
from dataclasses import dataclass, replace

from foretune.core.units import duration_text

_DAY_S = 86_400
_MOST_EXPONENT = 50
"""Interruptions during a stretch beyond which it practically never ends."""


@dataclass(frozen=True, kw_only=True)
class SpotTerms:
    """What the user states about spot instances."""

    interruptions_per_day: float = 1.0
    """Of one machine. An assumption: providers publish no rate, and it changes with the hour and the region."""
    wait_s: float = 600.0
    """From an interruption until the next instance starts."""

    def per_s(self, num_machines: int) -> float:
        """Any machine that is taken away interrupts the job."""
        return self.interruptions_per_day * num_machines / _DAY_S


@dataclass(frozen=True, kw_only=True)
class SpotJob:
    """A job as stretches of work. Times are of an instance that nobody takes away."""

    start_s: float
    """Of the program after each start: imports, reading weights."""
    once_s: float
    """Download and caching, which are done once."""
    work_s: float
    """Training and validation."""
    num_steps: int | None
    """None where the length of the training is a time: then it saves at the end alone."""
    save_s: float
    """Of one checkpoint."""
    save_every: int | None

    @property
    def step_s(self) -> float:
        return self.work_s / (self.num_steps or 1)

    def every(self, num_steps: int) -> "SpotJob":
        """Returns the job with a checkpoint every so many steps."""
        return replace(self, save_every=num_steps)

    @property
    def stretches(self) -> tuple[tuple[int, float], ...]:
        """How many stretches of which length: full ones, and the steps that are left."""
        num_steps, every = self.num_steps, self.save_every
        if num_steps is None or every is None or every >= num_steps:
            return ((1, self.work_s + self.save_s),)
        full, rest = divmod(num_steps, every)
        last = ((1, rest * self.step_s + self.save_s),) if rest else ()
        return ((full, every * self.step_s + self.save_s), *last)

    @property
    def undisturbed_s(self) -> float:
        return self.start_s + self.once_s + sum(count * length_s for count, length_s in self.stretches)


@dataclass(frozen=True, kw_only=True)
class SpotTime:
    """Expected figures of a job."""

    paid_s: float
    interruptions: float
    wait_s: float
    """Of all interruptions."""
    again_s: float
    """Restarts, and work that is done again."""

    @property
    def total_s(self) -> float:
        return self.paid_s + self.wait_s


def spot_time(job: SpotJob, terms: SpotTerms, num_machines: int = 1) -> SpotTime:
    """Returns the expected time of a job; infinite where it practically never ends."""
    rate = terms.per_s(num_machines)
    paid_s = _stretch_s(rate, 0.0, job.start_s + job.once_s)
    paid_s += sum(count * _stretch_s(rate, job.start_s, length_s) for count, length_s in job.stretches)
    interruptions = rate * paid_s
    return SpotTime(
        paid_s=paid_s,
        interruptions=interruptions,
        wait_s=interruptions * terms.wait_s,
        again_s=paid_s - job.undisturbed_s,
    )


def _stretch_s(rate: float, restart_s: float, length_s: float) -> float:
    if rate * (restart_s + length_s) > _MOST_EXPONENT:
        return math.inf
    return length_s if not rate else math.exp(rate * restart_s) * math.expm1(rate * length_s) / rate


def best_save_every(job: SpotJob, terms: SpotTerms, num_machines: int = 1) -> int | None:
    """Returns the steps between checkpoints by Daly's rule, which is Young's with the next terms of the series.

    Of the intervals near the rule's that divide the steps almost evenly, it is the one with the least expected time.
    """
    if job.num_steps is None:
        return None
    rate = terms.per_s(num_machines)
    if not rate:
        return job.num_steps
    half = job.save_s * rate / 2
    if half >= 1:
        interval_s = 1 / rate
    else:
        interval_s = math.sqrt(2 * job.save_s / rate) * (1 + math.sqrt(half) / 3 + half / 9) - job.save_s
    steps = min(job.num_steps, max(1.0, interval_s / job.step_s))
    num_saves = job.num_steps / steps
    near = {
        round(steps),
        *(math.ceil(job.num_steps / max(1, n)) for n in (math.floor(num_saves), math.ceil(num_saves))),
    }
    return min(sorted(near), key=lambda every: spot_time(job.every(every), terms, num_machines).paid_s)


def spot_assumptions(terms: SpotTerms, num_machines: int) -> tuple[str, ...]:
    """Returns what the expected time rests on."""
    machines = "" if num_machines == 1 else f" of each of {num_machines} machines, and any of them stops the job"
    rate = (
        f"{terms.interruptions_per_day:g} spot interruptions per day{machines}, at random times; another instance "
        f"starts after {duration_text(terms.wait_s)}, which are not paid (foretune plan "
        "--interruptions-per-day, --restart-wait)"
    )
    volume = (
        "checkpoints, weights and caches are on a volume that outlives the instance; an interrupted download or "
        "caching starts again, a training continues from its last checkpoint"
    )
    return rate, volume
