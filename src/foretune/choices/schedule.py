"""The learning rate as a pure function of the step."""

import math

from foretune.choices.training import Optimizer


def learning_rate(choice: Optimizer, step: int, num_steps: int | None) -> float:
    """The rate of step 0, 1, ...: warmed up linearly, then kept or brought down, to zero after the last step.

    Where the last step is not known beforehand, `num_steps` is None and the rate is kept.
    """
    if step < choice.warmup_steps:
        return choice.lr * (step + 1) / choice.warmup_steps
    if choice.schedule == "constant":
        return choice.lr
    assert num_steps is not None, "refused by the capability matrix"
    progress = min(1.0, (step - choice.warmup_steps) / max(1, num_steps - choice.warmup_steps))
    if choice.schedule == "linear":
        return choice.lr * (1 - progress)
    return choice.lr * 0.5 * (1 + math.cos(math.pi * progress))
