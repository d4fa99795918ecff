"""Every quality metric, and what each of its scores is: unit, better side, bounds.

An evaluation's file has values only; what they mean is stated here once, for those who measure and those who read. A
new metric is one entry of this table and one file.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Between which numbers a value must lie; None is no bound."""

    least: float | None = None
    most: float | None = None

    @property
    def width(self) -> float | None:
        """How far two values can be apart; None where nothing limits it."""
        return None if self.least is None or self.most is None else self.most - self.least


UNBOUNDED = Bounds()
NEVER_NEGATIVE = Bounds(least=0.0)
_ONE = Bounds(0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class ScoreKind:
    """One score by the name that an evaluation gives it."""

    name: str
    unit: str = ""
    higher_is_better: bool | None
    """None where neither is."""
    bounds: Bounds = UNBOUNDED
    is_share: bool = False
    """Whether it is the share of outcomes that are either so or not, such as images that show their prompt."""
    smallest_difference: float = 0.0
    """What is considered to matter, in the score's unit."""
    smallest_is_relative: bool = False
    """Whether it is a share of the base's value instead."""


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One metric by its name in `--metrics`: where its class is, and which scores it measures."""

    name: str
    target: str
    """Its class, as "package.module:attribute"."""
    scores: tuple[ScoreKind, ...]
    is_of_clips: bool = False
    """Whether it says something about clips only, so that an evaluation of images leaves it out."""


_HERE = "foretune.quality"
METRIC_SPECS = (
    MetricSpec(
        name="captions",
        target=f"{_HERE}.caption_accuracy:CaptionAccuracy",
        scores=(
            ScoreKind(
                name="caption accuracy", higher_is_better=True, bounds=_ONE, is_share=True, smallest_difference=0.05
            ),
        ),
    ),
    MetricSpec(
        name="style",
        target=f"{_HERE}.caption_accuracy:StyleScore",
        scores=(ScoreKind(name="style", higher_is_better=True, bounds=_ONE, smallest_difference=0.05),),
    ),
    MetricSpec(
        name="drawing",
        target=f"{_HERE}.clean_drawing:CleanDrawing",
        scores=(ScoreKind(name="clean drawing", higher_is_better=True, bounds=_ONE, smallest_difference=0.01),),
    ),
    MetricSpec(
        name="clip",
        target=f"{_HERE}.clip_score:ClipScore",
        scores=(
            ScoreKind(name="clip score", higher_is_better=True, bounds=Bounds(0.0, 100.0), smallest_difference=0.25),
        ),
    ),
    MetricSpec(
        name="loss",
        target=f"{_HERE}.held_out_loss:HeldOutLoss",
        scores=(
            ScoreKind(
                name="held-out loss",
                higher_is_better=False,
                bounds=NEVER_NEGATIVE,
                smallest_difference=0.01,
                smallest_is_relative=True,
            ),
        ),
    ),
    MetricSpec(
        name="psnr",
        target=f"{_HERE}.similarity:Psnr",
        scores=(ScoreKind(name="psnr", unit="dB", higher_is_better=True, smallest_difference=0.25),),
    ),
    MetricSpec(
        name="ssim",
        target=f"{_HERE}.similarity:Ssim",
        scores=(ScoreKind(name="ssim", higher_is_better=True, bounds=Bounds(-1.0, 1.0), smallest_difference=0.01),),
    ),
    MetricSpec(
        name="ms-ssim",
        target=f"{_HERE}.similarity:MsSsim",
        scores=(ScoreKind(name="ms-ssim", higher_is_better=True, bounds=_ONE, smallest_difference=0.01),),
    ),
    MetricSpec(
        name="lpips",
        target=f"{_HERE}.similarity:Lpips",
        scores=(ScoreKind(name="lpips", higher_is_better=False, bounds=NEVER_NEGATIVE, smallest_difference=0.01),),
    ),
    MetricSpec(
        name="drift",
        target=f"{_HERE}.drift:Drift",
        scores=(
            ScoreKind(name="drift psnr", unit="dB", higher_is_better=None),
            ScoreKind(name="drift ssim", higher_is_better=None, bounds=Bounds(-1.0, 1.0)),
        ),
    ),
    MetricSpec(
        name="kid",
        target=f"{_HERE}.kid:Kid",
        # Unbiased, and therefore below zero now and then.
        scores=(ScoreKind(name="kid", higher_is_better=False, smallest_difference=0.1, smallest_is_relative=True),),
    ),
    MetricSpec(
        name="fid",
        target=f"{_HERE}.fid:Fid",
        scores=(ScoreKind(name="fid", higher_is_better=False, bounds=NEVER_NEGATIVE),),
    ),
    MetricSpec(
        name="memorisation",
        target=f"{_HERE}.memorisation:Memorisation",
        scores=(
            ScoreKind(name="copies", higher_is_better=False, bounds=_ONE, is_share=True, smallest_difference=0.05),
            ScoreKind(name="nearest ratio", higher_is_better=None, bounds=_ONE),
        ),
    ),
    MetricSpec(
        name="motion",
        target=f"{_HERE}.motion:Motion",
        is_of_clips=True,
        scores=(
            ScoreKind(name="motion", higher_is_better=None, bounds=_ONE),
            ScoreKind(name="flicker", higher_is_better=None, bounds=Bounds(0.0, 2.0)),
        ),
    ),
    MetricSpec(
        name="diversity",
        target=f"{_HERE}.diversity:Diversity",
        scores=(ScoreKind(name="diversity", higher_is_better=None, bounds=_ONE),),
    ),
)
SCORES: Mapping[str, ScoreKind] = {score.name: score for spec in METRIC_SPECS for score in spec.scores}


def bounds_of(metric: str) -> Bounds:
    """Of a score by its name; one that is not known here has none."""
    return SCORES[metric].bounds if metric in SCORES else UNBOUNDED


def is_share(metric: str) -> bool:
    """Whether a score counts outcomes that are either so or not."""
    return metric in SCORES and SCORES[metric].is_share
