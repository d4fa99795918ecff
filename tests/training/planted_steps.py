"""Series of step times with planted slowness, for the alarms that watch a run."""

import random
from collections.abc import Callable

from foretune.core.observer import StepReport

Step = dict[str, float]
"""Seconds by phase."""


def report(step: int, phases_s: Step) -> StepReport:
    return StepReport(
        step=step,
        num_steps=1000,
        loss=0.5,
        grad_norm=None,
        lr=1e-4,
        step_s=sum(phases_s.values()),
        samples_per_step=4,
        phases_s=phases_s,
    )


def steps(num: int, level_s: Callable[[int], float], seed: int, noise: float = 0.03) -> list[Step]:
    """Steps about a level that may change from step to step."""
    chance = random.Random(seed)
    times_s = [level_s(step) * max(0.2, chance.gauss(1.0, noise)) for step in range(num)]
    return [{"data": 0.01, "forward": 0.3 * t, "backward": 0.7 * t} for t in times_s]


def healthy(seed: int, num: int = 400) -> list[Step]:
    """Warm-up, spikes, two sizes of image in turn, a slow wave, heavy noise: everything but drift."""
    chance = random.Random(seed)
    kind = seed % 5

    def level_s(step: int) -> float:
        warm = 3.0 if step < 3 else 1.0
        spike = 8.0 if chance.random() < 0.02 else 1.0
        size = 1.6 if kind == 1 and chance.random() < 0.5 else 1.0
        wave = 1.0 + (0.05 * ((step // 30) % 2) if kind == 2 else 0.0)
        return warm * spike * size * wave

    return steps(num, level_s, seed, noise=0.15 if kind == 3 else 0.03)
