"""What each score of an evaluation is, for whoever measures it and whoever reads it later: unit, better side, bounds.

An evaluation's file has values only; between which numbers they can lie is a fact of the metric, stated here once.
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


_KINDS = (
    ScoreKind(name="caption accuracy", higher_is_better=True, bounds=_ONE, is_share=True, smallest_difference=0.05),
    ScoreKind(name="style", higher_is_better=True, bounds=_ONE, smallest_difference=0.05),
    ScoreKind(name="clean drawing", higher_is_better=True, bounds=_ONE, smallest_difference=0.01),
    ScoreKind(name="clip score", higher_is_better=True, bounds=Bounds(0.0, 100.0), smallest_difference=0.25),
    ScoreKind(
        name="held-out loss",
        higher_is_better=False,
        bounds=NEVER_NEGATIVE,
        smallest_difference=0.01,
        smallest_is_relative=True,
    ),
    ScoreKind(name="psnr", unit="dB", higher_is_better=True, smallest_difference=0.25),
    ScoreKind(name="ssim", higher_is_better=True, bounds=Bounds(-1.0, 1.0), smallest_difference=0.01),
    ScoreKind(name="ms-ssim", higher_is_better=True, bounds=_ONE, smallest_difference=0.01),
    ScoreKind(name="lpips", higher_is_better=False, bounds=NEVER_NEGATIVE, smallest_difference=0.01),
    ScoreKind(name="drift psnr", unit="dB", higher_is_better=None),
    ScoreKind(name="drift ssim", higher_is_better=None, bounds=Bounds(-1.0, 1.0)),
    # Unbiased, and therefore below zero now and then.
    ScoreKind(name="kid", higher_is_better=False, smallest_difference=0.1, smallest_is_relative=True),
    ScoreKind(name="fid", higher_is_better=False, bounds=NEVER_NEGATIVE),
    ScoreKind(name="copies", higher_is_better=False, bounds=_ONE, is_share=True, smallest_difference=0.05),
    ScoreKind(name="nearest ratio", higher_is_better=None, bounds=_ONE),
    ScoreKind(name="diversity", higher_is_better=None, bounds=_ONE),
)
SCORES: Mapping[str, ScoreKind] = {kind.name: kind for kind in _KINDS}


def bounds_of(metric: str) -> Bounds:
    """Of a score by its name; one that is not known here has none."""
    return SCORES[metric].bounds if metric in SCORES else UNBOUNDED


def is_share(metric: str) -> bool:
    """Whether a score counts outcomes that are either so or not."""
    return metric in SCORES and SCORES[metric].is_share
