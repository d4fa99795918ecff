"""A sweep's trials, combination by combination, and the recommendation with its interval, or "cannot tell"."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foretune.analyse.convergence import Convergence, Curve
from foretune.analyse.ranking import FEWEST_RUNS, Ranking, rank
from foretune.analyse.sweep_findings import (
    BestBatch,
    CompileCost,
    Scaling,
    best_batches,
    compile_costs,
    loss_curves,
    name_of,
    runs_of,
    scalings,
)
from foretune.choices.sweep import FrontierStrategy, GuidedStrategy, Measurement, Objective, SweepFile
from foretune.core.scores import NEVER_NEGATIVE
from foretune.core.units import measured_text
from foretune.core.values import Finding
from foretune.stats.bounded import bounded_mean
from foretune.sweeps.strategies.frontier import size_of
from foretune.sweeps.strategies.guided import HIGHER_IS_BETTER
from foretune.sweeps.strategies.seam import NOT_FITTING
from foretune.sweeps.trial_results import TrialResult
from foretune.sweeps.trial_scores import by_point, score

CONFIDENCE = 0.95
_UNITS: Mapping[Objective, str] = {"speed": "samples/s", "memory": "bytes", "quality": "", "money": "usd"}
_WORDS: Mapping[Objective, str] = {
    "speed": "speed",
    "memory": "peak memory",
    "quality": "held-out loss",
    "money": "price",
}
_BETTER: Mapping[Objective, str] = {"speed": "faster", "memory": "less", "quality": "lower", "money": "cheaper"}


@dataclass(frozen=True, kw_only=True)
class MeanOverSeeds:
    """The mean over seeds."""

    value: float
    low: float | None
    """None with one value."""
    high: float | None
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The trials of one combination."""

    labels: Mapping[str, str]
    name: str
    outcomes: Mapping[str, int]
    reason: str | None
    """Why the first trial that is not done is not."""
    numbers: Mapping[Objective, MeanOverSeeds]
    step_s: float | None
    epoch_s: float | None
    planned_peak_bytes: int | None
    usd: float | None
    """Spent on its trials."""

    @property
    def is_done(self) -> bool:
        return set(self.outcomes) == {"done"}


@dataclass(frozen=True, kw_only=True)
class FrontierLine:
    """The largest size that fits, with the other axes fixed."""

    fixed: str
    """The other axes; empty where there are none."""
    largest: str | None
    """None where nothing fits."""
    next_larger: str | None
    """The next size, which was run and does not fit; None where every size fits."""
    num_run: int
    num_predicted: int


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """The answer of a sweep."""

    name: str
    objective: Objective
    combinations: tuple[Combination, ...]
    best: str | None
    """The combination that is shown to be best; None where none is."""
    headline: str
    detail: str
    frontier: tuple[FrontierLine, ...] = ()
    pareto: tuple[str, ...] = ()
    """Combinations that no other one beats in every objective."""
    best_batches: tuple[BestBatch, ...] = ()
    scaling: tuple[Scaling, ...] = ()
    compile_costs: tuple[CompileCost, ...] = ()
    curves: tuple[Curve, ...] = ()
    """Losses by step, where trials train."""
    convergence: tuple[Convergence, ...] = ()
    findings: tuple[Finding, ...] = ()
    usd: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        """The content of summary.json."""
        findings = [finding.to_mapping() for finding in self.findings]
        return {"format": "SweepSummary", "format_version": 1, **asdict(self), "findings": findings}


def summarise_sweep(
    name: str, file: SweepFile, results: Sequence[TrialResult], usd_per_hour: float | None
) -> SweepSummary:
    """Summarises what the trials show."""
    objective = objective_of(file, results)
    combinations = tuple(_combination(of_point, file.measure, usd_per_hour) for of_point in by_point(results).values())
    ranked = [one for one in combinations if one.is_done and objective in one.numbers]
    ranking = rank([one.numbers[objective].values for one in ranked], higher_is_better=HIGHER_IS_BETTER[objective])
    headline, detail = _recommendation(ranked, ranking, objective)
    spent = [result.usd for result in results if result.usd is not None]
    lines: tuple[FrontierLine, ...] = ()
    if isinstance(file.strategy, FrontierStrategy):
        key = file.strategy.key
        combinations = tuple(sorted(combinations, key=lambda one: size_of(one.labels[key])))
        lines = _frontier_lines(combinations, key)
        # Which of the sizes is fastest was not the question.
        headline, detail = "; ".join(map(_frontier_text, lines)) or headline, ""
    runs = runs_of(file, results)
    costs = list(compile_costs(runs))
    lines_of_loss, settled, convergence_findings = loss_curves(file, runs)
    is_guided = isinstance(file.strategy, GuidedStrategy) and len(file.strategy.objectives) > 1
    objectives = file.strategy.objectives if isinstance(file.strategy, GuidedStrategy) else ()
    return SweepSummary(
        name=name,
        objective=objective,
        combinations=combinations,
        best=None if ranking.best is None else ranked[ranking.best].name,
        headline=headline,
        detail=detail,
        frontier=lines,
        pareto=tuple(one.name for one in _pareto(combinations, objectives)) if is_guided else (),
        best_batches=() if lines else best_batches(results),
        scaling=scalings(results),
        compile_costs=tuple(cost for cost, _ in costs),
        curves=lines_of_loss,
        convergence=settled,
        findings=(*(finding for _, finding in costs), *convergence_findings),
        usd=sum(spent) if spent else None,
    )


def objective_of(file: SweepFile, results: Sequence[TrialResult]) -> Objective:
    """What the recommendation goes by."""
    if file.objective is not None:
        return file.objective
    if isinstance(file.strategy, GuidedStrategy):
        return file.strategy.objectives[0]
    done = [result for result in results if result.is_done]
    has_quality = bool(done) and all(result.numbers.held_out_loss is not None for result in done)
    return "quality" if has_quality else "speed"


def _combination(results: Sequence[TrialResult], measure: Measurement, usd_per_hour: float | None) -> Combination:
    failed = next((result for result in results if not result.is_done), None)
    done = [result for result in results if result.is_done]
    numbers: dict[Objective, MeanOverSeeds] = {}
    for objective in _WORDS:
        values = [score(result, objective, usd_per_hour, measure) for result in done]
        known = [value for value in values if value is not None]
        if known and len(known) == len(done):
            numbers[objective] = _number(known)
    spent = [result.usd for result in results if result.usd is not None]
    planned = [result.numbers.planned_peak_bytes for result in results]
    return Combination(
        labels=dict(results[0].labels),
        name=name_of(results[0].labels),
        outcomes=dict(Counter(result.outcome.kind for result in results)),
        reason=None if failed is None else failed.outcome.reason,
        numbers=numbers,
        step_s=_mean([result.numbers.step_s for result in done]),
        epoch_s=_mean([result.numbers.epoch_s for result in done]),
        planned_peak_bytes=planned[0],
        usd=sum(spent) if spent else None,
    )


def _number(values: Sequence[float]) -> MeanOverSeeds:
    low, high = None, None
    value = statistics.fmean(values)
    if len(values) > 1:
        value, low, high = bounded_mean(values, CONFIDENCE, NEVER_NEGATIVE)
    return MeanOverSeeds(value=value, low=low, high=high, values=tuple(values))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _recommendation(ranked: Sequence[Combination], ranking: Ranking, objective: Objective) -> tuple[str, str]:
    """A headline and a detail. A best is named where twenty equal combinations would have one in 5 % of sweeps."""
    word = _WORDS[objective]
    if not ranked:
        return f"Cannot tell: no combination has finished with a {word}", ""
    if len(ranked) == 1:
        return f"One combination finished: {ranked[0].name}", f"Its {word}: {number_text(ranked[0], objective)}."
    assert ranking.leader is not None, "they have values"
    leader = ranked[ranking.leader]
    narrowest = ranking.narrowest
    if ranking.best is not None:
        assert narrowest is not None, "a best is better than another one"
        rival = ranked[narrowest.ahead_of]
        lead = measured_text(narrowest.value, narrowest.low, narrowest.high, _UNITS[objective])
        closest = ", the closest" if len(ranked) > 2 else ""  # noqa: PLR2004
        better = f"{_BETTER[objective]} by {lead} than {rival.name}{closest}"
        detail = f"Its {word} is {number_text(leader, objective)}, {better}."
        return f"Best by {word}: {leader.name}", detail
    fewest = min(len(one.numbers[objective].values) for one in ranked)
    leads = f"{leader.name} leads with {number_text(leader, objective)}"
    if fewest < FEWEST_RUNS:
        each = "one run" if fewest == 1 else f"{fewest} runs"
        seeds = "--seed 0 --seed 1 --seed 2, or seeds: [0, 1, 2] in the sweep file"
        return (
            f"Cannot tell which is best by {word}: {each} of each combination",
            f"So far {leads}. To find out, run each with at least {FEWEST_RUNS} seeds: {seeds}",
        )
    tied = [ranked[number].name for number in ranking.tied if number != ranking.leader]
    nearest = ""
    if narrowest is not None and narrowest.low is not None:
        lead = measured_text(narrowest.value, narrowest.low, narrowest.high, _UNITS[objective])
        nearest = f" Its lead over {ranked[narrowest.ahead_of].name} is {lead}, which may be chance."
    return (
        f"Cannot tell which is best by {word}: {len(tied) + 1} combinations may be",
        f"{leads}; not shown to be behind: {_listed(tied)}.{nearest}",
    )


def number_text(one: Combination, objective: Objective) -> str:
    """A combination's number with its interval and unit."""
    number = one.numbers[objective]
    if objective == "quality" and number.low is None:
        # Losses of one run each: two digits would show different ones as equal.
        return f"{number.value:.4g}"
    return measured_text(number.value, number.low, number.high, _UNITS[objective])


def _listed(names: Sequence[str], most: int = 4) -> str:
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")


def _frontier_lines(combinations: Sequence[Combination], key: str) -> tuple[FrontierLine, ...]:
    lines: dict[str, list[Combination]] = {}
    for one in combinations:
        lines.setdefault(name_of({axis: label for axis, label in one.labels.items() if axis != key}), []).append(one)
    return tuple(_frontier_line(fixed, key, members) for fixed, members in lines.items())


def _frontier_line(fixed: str, key: str, members: Sequence[Combination]) -> FrontierLine:
    by_size = sorted(members, key=lambda one: size_of(one.labels[key]))
    fitting = [one for one in by_size if one.is_done]
    predicted = [one for one in by_size if "predicted not to fit" in one.outcomes]
    failing = [one for one in by_size if set(one.outcomes) & {*NOT_FITTING} and one not in predicted]
    return FrontierLine(
        fixed=fixed,
        largest=fitting[-1].labels[key] if fitting else None,
        next_larger=failing[0].labels[key] if failing else None,
        num_run=len(by_size) - len(predicted),
        num_predicted=len(predicted),
    )


def _frontier_text(line: FrontierLine) -> str:
    where = f"{line.fixed}: " if line.fixed else ""
    trials = f"{line.num_run} trials" if line.num_run != 1 else "1 trial"
    if line.largest is None:
        return f"{where}nothing fits, from {line.next_larger} on ({trials})"
    if line.next_larger is None:
        return f"{where}{line.largest} fits, the largest of the axis ({trials})"
    return f"{where}{line.largest} fits, {line.next_larger} does not ({trials})"


def _pareto(combinations: Sequence[Combination], objectives: Sequence[Objective]) -> list[Combination]:
    able = [one for one in combinations if one.is_done and all(o in one.numbers for o in objectives)]

    def values(one: Combination) -> list[float]:
        return [one.numbers[o].value * (1 if HIGHER_IS_BETTER[o] else -1) for o in objectives]

    def beats(a: Combination, b: Combination) -> bool:
        pairs = list(zip(values(a), values(b), strict=True))
        return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)

    return [one for one in able if not any(beats(other, one) for other in able)]
