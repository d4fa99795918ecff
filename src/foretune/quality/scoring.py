"""Turns raw values into scores with intervals, and into differences between the columns."""

from collections.abc import Mapping, Sequence

from foretune.core.values import Score, ScoreDifference
from foretune.core.values.evaluation import Column, QualityAnswer
from foretune.quality.measurement import ScoreReading
from foretune.stats.clusters import (
    Clustered,
    cluster_means,
    clustered_mean,
    clustered_share,
    direction,
    paired_difference,
    shared_confidence,
)

SCORE_CONFIDENCE = 0.95
DIFFERENCES_CONFIDENCE = 0.95
"""For all differences of an evaluation together: a model compared with itself is called better or worse in 1 of 20."""


def score_of(measurement: ScoreReading, column: Column) -> Score:
    """Returns the score of one metric and column."""
    head = Score(
        metric=measurement.metric,
        unit=measurement.kind.unit,
        higher_is_better=measurement.kind.higher_is_better,
        column=column,
        repeats_over=measurement.repeats_over,
        bands=measurement.numbers.bands,
        why_absent=measurement.why_absent,
        value=measurement.numbers.value,
    )
    if not measurement.groups:
        return head
    if measurement.kind.is_share:
        found = clustered_share(measurement.groups, SCORE_CONFIDENCE)
    else:
        found = clustered_mean(measurement.groups, SCORE_CONFIDENCE, measurement.kind.bounds)
    # If the overall value is not the mean of the groups, they only provide its spread.
    whole = measurement.numbers.value
    moved = 0.0 if whole is None else whole - found.value
    return head.model_copy(
        update={
            "value": found.value + moved,
            "low": None if found.low is None else found.low + moved,
            "high": None if found.high is None else found.high + moved,
            "confidence": None if found.low is None else SCORE_CONFIDENCE,
            "num_values": found.num_clusters,
            "raw": tuple(cluster_means(measurement.groups)),
        }
    )


def differences_of(base: Sequence[ScoreReading], run: Sequence[ScoreReading]) -> tuple[ScoreDifference, ...]:
    """Compares every metric that both columns have and that has a better direction. The intervals are simultaneous."""
    before: Mapping[str, ScoreReading] = {measurement.metric: measurement for measurement in base}
    pairs = [
        (before[after.metric], after)
        for after in run
        if after.kind.higher_is_better is not None and after.groups and before.get(after.metric, after).groups
        if after.metric in before
    ]
    confidence = shared_confidence(DIFFERENCES_CONFIDENCE, len(pairs))
    return tuple(_difference(*pair, confidence) for pair in pairs)


def _difference(base: ScoreReading, run: ScoreReading, confidence: float) -> ScoreDifference:
    found = paired_difference(base.groups, run.groups, confidence, run.kind.bounds, is_share=run.kind.is_share)
    smallest = run.kind.smallest_difference
    if run.kind.smallest_is_relative:
        smallest *= abs(score_of(base, "base").value or 0.0)
    return ScoreDifference(
        metric=run.metric,
        difference=found.value,
        low=found.low,
        high=found.high,
        confidence=confidence,
        answer=_answer(found, smallest, is_higher_better=bool(run.kind.higher_is_better)),
        num_pairs=found.num_clusters,
    )


def _answer(difference: Clustered, smallest: float, *, is_higher_better: bool) -> QualityAnswer:
    shown = direction(difference, smallest)
    if shown == "higher":
        return "better" if is_higher_better else "worse"
    if shown == "lower":
        return "worse" if is_higher_better else "better"
    return shown
