"""How good the images of a run are, beside those of the model it started from."""

from typing import Any, Literal

from foretune.core.values.base import Part, Value

Column = Literal["base", "run"]
SAMPLE_FOLDER = "samples"
QualityAnswer = Literal["better", "worse", "no difference shown", "inconclusive"]


class Score(Part):
    """One metric of one column. A metric that does not apply has no value and says why."""

    metric: str
    unit: str
    """Empty for shares and similarities, which have none."""
    higher_is_better: bool | None
    """None where neither is: a distance from the base is not good or bad by itself."""
    column: Column
    value: float | None = None
    low: float | None = None
    """None is an absent interval, not one of no width."""
    high: float | None = None
    confidence: float | None = None
    num_values: int = 0
    """Independent values the interval rests on, such as prompts; seeds of one prompt are one value together."""
    repeats_over: str = ""
    """What these values are: "prompts", "held-out images", "samples"."""
    raw: tuple[float, ...] = ()
    """One number for each of these values, in the order of the settings."""
    why_absent: str | None = None
    """One sentence where there is no value."""
    bands: dict[str, float] | None = None
    """The value in parts, such as by noise level; None where it has no parts."""


class ScoreDifference(Part):
    """How the run differs from the base in one metric."""

    metric: str
    difference: float | None
    """Run minus base; None where there was too little to say."""
    low: float | None
    high: float | None
    confidence: float
    """Of this interval alone; it is wider where several metrics are compared at once."""
    answer: QualityAnswer
    num_pairs: int
    """Independent pairs: prompts or held-out images that both columns have."""


class Evaluation(Value):
    """The scores of a run and of its base on the same prompts and seeds, and how the two differ."""

    evaluation_id: str
    """Hash of what was asked, which weights were asked, and where."""
    subject: str
    """What the column "run" shows, in words."""
    base: str | None
    """What the column "base" shows; None where there was nothing to compare with."""
    run_id: str | None
    model: str
    """The base model as the experiment names it."""
    settings: dict[str, Any]
    """All that decides the images: prompts, seeds, steps, size, precision, and the settings of metrics."""
    environment_hash: str
    scores: tuple[Score, ...]
    differences: tuple[ScoreDifference, ...] = ()
    pictures: tuple[str, ...] = ()
    """Sample grids, as paths relative to the evaluation's own file."""
    images_per_s: float | None = None
    """Of the run, sampled as the settings say."""
    base_images_per_s: float | None = None
    wall_s: float | None = None
    """Of the whole evaluation."""
    warnings: tuple[str, ...] = ()

    def score(self, metric: str, column: Column = "run") -> Score | None:
        """The score of one metric in one column, if it was asked for."""
        return next((score for score in self.scores if (score.metric, score.column) == (metric, column)), None)

    def difference(self, metric: str) -> ScoreDifference | None:
        """How the columns differ in one metric, where both have it."""
        return next((difference for difference in self.differences if difference.metric == metric), None)


def sample_file(column: Column, prompt: int) -> str:
    """Where an evaluation keeps the first image of a prompt, relative to its own file; prompts count from 0."""
    return f"{SAMPLE_FOLDER}/{column}-{prompt:03d}.png"
