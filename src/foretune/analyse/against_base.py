"""Whether configurations are better than the model they started from, over their runs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from foretune.analyse.comparability import too_few_steps
from foretune.analyse.groups import Configuration
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import CONFIDENCE, Evaluations
from foretune.core.scores import bounds_of, is_share
from foretune.core.units import measured_pair_text, measured_text
from foretune.core.values import Finding
from foretune.core.values.evaluation import Evaluation
from foretune.stats.bounded import bounded_difference


@dataclass(frozen=True)
class ScoreChange:
    """Run minus base in one metric, over the runs of a configuration."""

    value: float
    low: float | None
    """None where it is not known how runs or prompts differ."""
    high: float | None
    base: float
    after: float
    runs: tuple[RunData, ...]
    unit: str
    higher_is_better: bool | None

    @property
    def is_shown(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def change_of(
    one: Configuration, evaluations: Evaluations, metric: str, confidence: float = CONFIDENCE
) -> ScoreChange | None:
    """One number a run; of a single run, the interval of its evaluation over prompts. None: nothing was compared."""
    runs = [run for run in one.finished if run.path in evaluations and _pair(evaluations[run.path], metric)]
    pairs = [pair for run in runs if (pair := _pair(evaluations[run.path], metric)) is not None]
    if not pairs:
        return None
    differences = [after - base for base, after in pairs]
    low = high = None
    value = differences[0]
    if len(pairs) > 1:
        # The base is the same in all; what varies is the runs' share.
        mean = sum(after for _, after in pairs) / len(pairs)
        num_outcomes = _num_outcomes(runs, evaluations, metric) if is_share(metric) else 0
        shares = ((mean, num_outcomes),) if num_outcomes else ()
        value, low, high = bounded_difference(differences, confidence, bounds_of(metric), shares=shares)
    else:
        compared = evaluations[runs[0].path].difference(metric)
        if compared is not None and compared.difference is not None:
            value, low, high = compared.difference, compared.low, compared.high
    score = evaluations[runs[0].path].score(metric)
    assert score is not None, "it was one of the pair"
    base, after = (sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1))
    return ScoreChange(value, low, high, base, after, tuple(runs), score.unit, score.higher_is_better)


def _num_outcomes(runs: Sequence[RunData], evaluations: Evaluations, metric: str) -> int:
    """Prompts of all runs together: each has succeeded or failed."""
    scores = (evaluations[run.path].score(metric) for run in runs)
    return sum(score.num_values for score in scores if score is not None)


def base_findings(found: Sequence[Configuration], evaluations: Evaluations, metric: str) -> list[Finding]:
    """A sentence for each configuration; the intervals allow for their number. Too few steps are no change."""
    confidence = 1 - (1 - CONFIDENCE) / max(len(found), 1)
    findings = []
    for one in found:
        change = change_of(one, evaluations, metric, confidence)
        if change is not None:
            evidence = tuple(run.run_id for run in change.runs)
            few = too_few_steps(change.runs)
            if few is not None:
                sentence = f"{one.name} is not compared with its base: {few}."
                findings.append(Finding(sentence=sentence, evidence=evidence))
                continue
            sentence = _sentence(one, metric, change) + _each_alone(change, evaluations, metric)
            sentence += _losses(one, evaluations, metric, confidence)
            findings.append(Finding(sentence=sentence, evidence=evidence))
    return findings


def _each_alone(change: ScoreChange, evaluations: Evaluations, metric: str) -> str:
    """Two runs tell little about a third. What each of them shows over its own prompts is no less for that."""
    differences = (evaluations[run.path].difference(metric) for run in change.runs)
    answers = {None if difference is None else difference.answer for difference in differences}
    if change.is_shown or len(change.runs) == 1 or answers not in ({"better"}, {"worse"}):
        return ""
    (answer,) = answers
    return f" Each of its {len(change.runs)} runs is {answer} over its own prompts, but two runs hardly show a spread."


def _losses(one: Configuration, evaluations: Evaluations, metric: str, confidence: float) -> str:
    """The price of it: other metrics in which the configuration is shown to be worse than its base."""
    compared = dict.fromkeys(
        difference.metric
        for run in one.finished
        if run.path in evaluations
        for difference in evaluations[run.path].differences
    )
    worse = []
    for other in compared:
        change = None if other == metric else change_of(one, evaluations, other, confidence)
        if change is not None and change.is_shown and change.higher_is_better is not None and not _is_better(change):
            worse.append(f"{other} by {_size(change)}")
    return f" Worse than its base in {'; '.join(worse)}." if worse else ""


def _sentence(one: Configuration, metric: str, change: ScoreChange) -> str:
    sides = measured_pair_text(change.base, change.after, change.low, change.high, change.unit)
    runs = "one run, interval over its prompts" if len(change.runs) == 1 else f"{len(change.runs)} runs"
    if not change.is_shown:
        by = measured_text(change.value, change.low, change.high, change.unit)
        return f"{one.name}: no change in {metric} shown. {sides[0]} before, {sides[1]} after: {by}, {runs}."
    does = "raised" if change.value > 0 else "lowered"
    by = _size(change)
    good = "" if change.higher_is_better is None else "better " if _is_better(change) else "worse "
    return f"{one.name} {does} {metric} from {sides[0]} to {sides[1]}: {good}by {by}, {runs}."


def _size(change: ScoreChange) -> str:
    """The size of a change that is shown; an end that rounds to zero is written as "more than 0"."""
    assert change.low is not None, "shown"
    assert change.high is not None, "shown"
    edges = (change.low, change.high) if change.value > 0 else (-change.high, -change.low)
    text = measured_text(abs(change.value), *edges, change.unit)
    return re.sub(r"\(0(\.0+)? to", "(more than 0 to", text)


def _is_better(change: ScoreChange) -> bool:
    return (change.value > 0) == change.higher_is_better


def _pair(evaluation: Evaluation, metric: str) -> tuple[float, float] | None:
    base, after = evaluation.score(metric, "base"), evaluation.score(metric, "run")
    if base is None or after is None or base.value is None or after.value is None:
        return None
    return base.value, after.value
