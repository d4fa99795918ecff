"""What too few runs of a configuration leave open: what is known of it, and what a few more would show."""

import math
import statistics
from collections.abc import Iterator, Sequence

from foretune.analyse.groups import Configuration
from foretune.analyse.ranking import FEWEST_RUNS, Ranking, rank
from foretune.analyse.run_numbers import CONFIDENCE, Evaluations, Measure
from foretune.core.scores import is_share
from foretune.core.units import measured_text
from foretune.core.values import Finding
from foretune.stats.clusters import paired_difference
from foretune.stats.student import student_quantile

_POWER = 0.9
"""A difference is said to show where it would in so many of all cases."""
_DF_SHARE = 0.65
"""Of all degrees of freedom. Each side's spread is estimated from its few runs alone, so that a test finds less than
with all of them: simulated with 3 to 15 runs, what is promised here is found in 90 to 93 of 100 cases (with all degrees
of freedom in 73 to 89)."""
_MOST_RUNS = 100


def missing_findings(
    able: Sequence[Configuration],
    measures: Sequence[Measure],
    rankings: Sequence[tuple[str, Ranking]],
    evaluations: Evaluations,
) -> list[Finding]:
    """One for each configuration with fewer than three runs, or one for all where none was repeated.

    `able`: those with a finished run. `rankings`: of the recommendation; its first is what decides.
    """
    few = [one for one in able if len(one.finished) < FEWEST_RUNS]
    name, ranking = rankings[0] if rankings else (None, None)
    measure = next((each for each in measures if name in (None, each.name) and each.values(able[0].finished)), None)
    if not few or measure is None or (ranking is not None and ranking.best is not None):
        return []
    if ranking is None:
        return [_finding(_alone(able[0], measure, evaluations), able)]
    spread = _spread([measure.values(one.finished) for one in able])
    if spread is None:
        return [_finding(_none_repeated(able, measure, ranking, evaluations), able)]
    findings = [_finding(_few(one, able, measure, ranking.alpha, spread, evaluations), [one]) for one in few]
    return [*_best_of_repeated(able, measure, ranking), *findings]


def _alone(one: Configuration, measure: Measure, evaluations: Evaluations) -> str:
    known = _known(one, measure, evaluations)
    if len(one.finished) == 1:
        return (
            f"{one.name} has one run: {measure.name} {known}. How much another seed would change that is not known; "
            f"{_more(one)} would show it."
        )
    wide = f"{one.name} has two runs, so its intervals are wide: {measure.name} {known}"
    return f"{wide}; {_more(one)} would narrow them."


def _none_repeated(able: Sequence[Configuration], measure: Measure, ranking: Ranking, evaluations: Evaluations) -> str:
    assert ranking.leader is not None, "all have a value"
    reach = _showing(1.0, FEWEST_RUNS, FEWEST_RUNS, ranking.alpha)
    of = "Neither" if len(able) == 2 else f"None of the {len(able)} configurations"  # noqa: PLR2004
    nearest = able[ranking.margins[0].ahead_of]
    models = _between_models(able[ranking.leader], nearest, measure, evaluations)
    seeds = _seeds([run.experiment.train.seed for one in able for run in one.finished], FEWEST_RUNS - 1)
    return (
        f"{of} was repeated, so how much another seed would change these numbers is not known, and none can be shown "
        f"to be best or worse.{models} 2 more runs of each ({seeds}) would measure the spread between seeds, and show "
        f"differences of {reach:.0f} times that spread in nine of ten cases."
    )


def _few(
    one: Configuration,
    able: Sequence[Configuration],
    measure: Measure,
    alpha: float,
    spread: float,
    evaluations: Evaluations,
) -> str:
    sign = 1.0 if measure.higher_is_better else -1.0
    others = [(sign * statistics.fmean(values), other, len(values))
              for other in able if other is not one and (values := measure.values(other.finished))]  # fmt: skip
    best, rival, num_rival = max(others, key=lambda entry: entry[0])
    gap = best - sign * statistics.fmean(measure.values(one.finished))
    where = f"{_text(abs(gap), measure)} {'behind' if gap > 0 else 'ahead of'} {rival.name}"
    is_single = len(one.finished) == 1
    standing = (
        "It can be shown neither best nor worse, because how much another seed would change it is not known"
        if is_single
        else "Two runs are too few to show it better or worse"
    )
    shown = _showing(spread, FEWEST_RUNS, max(num_rival, FEWEST_RUNS), alpha)
    if abs(gap) >= shown:
        outlook = "this one is larger"
    else:
        num = _num_needed(abs(gap), spread, alpha)
        takes = f"about {num - len(one.finished)} more" if num is not None else f"more than {_MOST_RUNS}"
        outlook = f"this one is smaller, and would take {takes}"
    ahead, behind = (rival, one) if gap > 0 else (one, rival)
    models = _between_models(ahead, behind, measure, evaluations)
    return (
        f"{one.name} has {'one run' if is_single else 'two runs'}: {measure.name} "
        f"{_known(one, measure, evaluations)}, so far {where}. {standing}.{models} Repeats here have a standard "
        f"deviation of {_text(spread, measure)}: {_more(one)} would show a difference of "
        f"{_text(shown, measure)} in nine of ten cases; {outlook}."
    )


def _best_of_repeated(able: Sequence[Configuration], measure: Measure, ranking: Ranking) -> Iterator[Finding]:
    """Where only too few runs stand in the way of a winner, the winner among the others is named."""
    repeated = [one for one in able if len(measure.values(one.finished)) >= FEWEST_RUNS]
    if ranking.best is not None or not 1 < len(repeated) < len(able):
        return
    among = rank(
        [measure.values(one.finished) for one in repeated],
        higher_is_better=measure.higher_is_better,
        alpha=ranking.alpha,
    )
    if among.best is not None:
        yield _finding(
            f"Of the {len(repeated)} configurations with {FEWEST_RUNS} runs or more, {repeated[among.best].name} is "
            f"shown to be best in {measure.name}; whether it is the best of all is open.",
            repeated,
        )


def _between_models(ahead: Configuration, behind: Configuration, measure: Measure, evaluations: Evaluations) -> str:
    """How two single runs differ over the same prompts: about these two models, not about how they were made."""
    raw = []
    for one in (behind, ahead):
        run = one.finished[0]
        score = evaluations[run.path].score(measure.name) if run.path in evaluations else None
        if len(one.finished) > 1 or score is None or score.value != measure.of(run) or len(score.raw) < FEWEST_RUNS:
            return ""
        if not math.isclose(statistics.fmean(score.raw), score.value or 0.0, abs_tol=1e-9):
            return ""  # a distance of sets is no mean over prompts
        raw.append(([(value,) for value in score.raw], score.repeats_over))
    (before, over), (after, _) = raw
    if len(before) != len(after):
        return ""
    found = paired_difference(before, after, CONFIDENCE, measure.bounds, is_share=is_share(measure.name))
    sign = 1.0 if measure.higher_is_better else -1.0
    assert found.low is not None, "there are several"
    assert found.high is not None, "there are several"
    low, high = sorted((sign * found.low, sign * found.high))
    by = measured_text(sign * found.value, low, high, measure.unit)
    same = f" Over the same {found.num_clusters} {over}"
    names = [one.letter or one.label for one in (ahead, behind)]
    if low > 0:
        better = f"the model of {names[0]} is better than that of {names[1]} by {by}"
        return f"{same}, {better}; another seed may turn that around."
    return f"{same}, no difference between the models of {names[0]} and {names[1]} is shown: {by}."


def _known(one: Configuration, measure: Measure, evaluations: Evaluations) -> str:
    """Of one run the interval over its prompts, where it was evaluated."""
    estimate = measure.estimate(one.finished)
    assert estimate is not None, "asked where it was measured"
    run = one.finished[0]
    score = evaluations[run.path].score(measure.name) if run.path in evaluations else None
    if len(one.finished) > 1 or score is None or score.value != estimate.value or score.low is None:
        return measured_text(estimate.value, estimate.low, estimate.high, measure.unit)
    text = measured_text(score.value, score.low, score.high, measure.unit)
    return f"{text.removesuffix(')')} over its {score.repeats_over})"


def _spread(groups: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation of repeats, over all that were repeated; None where that is not known."""
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups if len(group) > 1)
    num = sum(len(group) - 1 for group in groups if len(group) > 1)
    return math.sqrt(squares / num) if squares > 0 else None


def _showing(spread: float, num_a: int, num_b: int, alpha: float) -> float:
    """The difference that so many runs of each show in nine of ten cases, if repeats differ by `spread`."""
    df = _DF_SHARE * (num_a + num_b - 2)
    quantiles = student_quantile(1 - alpha / 2, df) + student_quantile(_POWER, df)
    return quantiles * spread * math.sqrt(1 / num_a + 1 / num_b)


def _num_needed(gap: float, spread: float, alpha: float) -> int | None:
    """Runs of each that show a difference; None where they are too many to ask for."""
    enough = (num for num in range(FEWEST_RUNS, _MOST_RUNS + 1) if _showing(spread, num, num, alpha) <= gap)
    return next(enough, None)


def _more(one: Configuration) -> str:
    num = FEWEST_RUNS - len(one.finished)
    used = [run.experiment.train.seed for run in one.finished]
    return f"{num} more {'run' if num == 1 else 'runs'} ({_seeds(used, num)})"


def _seeds(used: Sequence[int], num: int) -> str:
    free = [seed for seed in range(len(used) + num) if seed not in used][:num]
    return " and ".join(f"train.seed={seed}" for seed in free)


def _text(value: float, measure: Measure) -> str:
    return measured_text(value, None, None, measure.unit)


def _finding(sentence: str, found: Sequence[Configuration]) -> Finding:
    return Finding(sentence=sentence, evidence=tuple(run.run_id for one in found for run in one.finished))
