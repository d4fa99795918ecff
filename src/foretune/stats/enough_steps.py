"""When a training has gone far enough for its quality to be compared: one number of steps, one tolerance of time.

An interval over prompts or seeds says that two numbers differ; it does not say that anything was trained. After one
optimizer step a score moves in its fourth digit, in every prompt alike, and the difference is "shown".
"""

FEWEST_TRAINED_STEPS = 50
"""Optimizer steps of a run before its quality is called better or worse than another one's.

Measured on the small model (docs/decisions.md): after 5, 10 and 20 steps full fine-tuning seems ahead of LoRA, from 50
steps on the two are level, as they are after 300. A learning-rate warm-up that is longer must be over.
"""
CLOCK_TOLERANCE = 0.1
"""Share of its time by which a run may overshoot and still count as "the same time": the last step is finished, and
where that is more than a tenth of the time there were fewer than ten steps in it."""


def fewest_steps(num_warmup_steps: int) -> int:
    """Steps that a run with this warm-up of the learning rate must have made."""
    return max(FEWEST_TRAINED_STEPS, num_warmup_steps)


def has_overshot(counted_s: float, limit_s: float) -> bool:
    """Whether the clock counted so much more than was given that it is another time."""
    return counted_s > (1 + CLOCK_TOLERANCE) * limit_s
