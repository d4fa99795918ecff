"""What is stated of scores once: bounds that their values keep, and names that metrics have."""

import inspect
from typing import TypeGuard

from foretune.core.scores import SCORES, Bounds, bounds_of, is_share
from foretune.quality.measurement import OneScore
from foretune.quality.metrics import METRICS


def test_shares_lie_between_nothing_and_all() -> None:
    assert {name for name in SCORES if is_share(name)} == {"caption accuracy", "copies"}
    assert all(kind.bounds == Bounds(0.0, 1.0) for kind in SCORES.values() if kind.is_share)


def test_a_score_of_another_release_has_no_bounds() -> None:
    assert bounds_of("a metric to come") == Bounds()
    assert not is_share("a metric to come")
    assert bounds_of("ssim").width == 2.0
    assert bounds_of("held-out loss").width is None


def test_every_metric_of_one_score_names_one_that_is_reported() -> None:
    named = [metric.score for metric in map(METRICS.__getitem__, METRICS) if _is_one_score(metric)]
    assert len(named) == 12
    assert set(named) <= set(SCORES)


def _is_one_score(metric: object) -> TypeGuard[type[OneScore]]:
    return inspect.isclass(metric) and issubclass(metric, OneScore)
