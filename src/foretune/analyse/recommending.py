"""Which configuration wins, and how sure that is. Quality counts first, then time, memory and cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretune.analyse.comparability import overshot_clock, too_few_steps
from foretune.analyse.groups import Configuration, environments_apart
from foretune.analyse.ranking import ALPHA, FEWEST_RUNS, Margin, Ranking, rank
from foretune.analyse.run_numbers import HELD_OUT_LOSS, MEMORY, MONEY, SPEED, TIME, Measure
from foretune.core.units import measured_text
from foretune.core.values import Finding

_QUALITY_SHARE = 0.6
"""Of the chance to be wrong, which all criteria share: the first gets the most of it, the others the rest."""
_MOST_NAMES = 4


@dataclass(frozen=True)
class Recommendation:
    """The winner or the tie, with the rankings behind it."""

    headline: str
    """One line: "Winner: ...", "Tie: ...", or why there is neither."""
    detail: str
    """The numbers behind it, in a sentence or two; may be empty."""
    finding: Finding
    """Headline and detail, with the runs they rest on and their caveat."""
    chosen: Configuration | None
    """None where nothing can be recommended."""
    is_best_shown: bool
    """Whether the evidence sets it apart; else it is one of several that may be best."""
    decided_by: str | None
    """The measure that set it apart."""
    rankings: tuple[tuple[str, Ranking], ...]
    compared: tuple[Configuration, ...] = ()
    """What the rankings number: those with a finished run that had enough steps, and the time that all were given."""


def recommend(found: Sequence[Configuration], measures: Sequence[Measure]) -> Recommendation:
    """The recommendation among configurations that answer one question.

    Criteria are asked one after another, each among those that the one before could not tell apart. All of them
    together name a best among like configurations in at most 5 of 100 cases.
    """
    finished = [one for one in found if one.finished]
    if not finished:
        return _nothing("No result: no run has finished", found)
    left_out = _left_out(finished) if len(finished) > 1 else {}
    able = [one for one in finished if one.key not in left_out]
    if not able:
        whys = "; ".join(f"{one.name}: {left_out[one.key]}" for one in finished[:_MOST_NAMES])
        return _nothing(f"No winner: {whys}", finished)
    recommendation = _among(able, measures)
    if not left_out:
        return recommendation
    whys = "; ".join(f"{one.name}: {left_out[one.key]}" for one in finished if one.key in left_out)
    caveats = [f"Not compared: {whys}.", *filter(None, [recommendation.finding.caveat])]
    finding = recommendation.finding.model_copy(update={"caveat": " ".join(caveats)})
    return replace(recommendation, finding=finding)


def _left_out(finished: Sequence[Configuration]) -> dict[str, str]:
    """By key, why a configuration can be neither better nor worse: too few steps, or not the time that all had."""
    reasons: dict[str, str] = {}
    for one in finished:
        clock = overshot_clock(one.finished) if is_time_held_equal(finished) else None
        why = too_few_steps(one.finished) or clock
        if why is not None:
            reasons[one.key] = why
    return reasons


def _among(able: Sequence[Configuration], measures: Sequence[Measure]) -> Recommendation:
    criteria = _criteria(able, measures)
    if len(able) == 1:
        return _made(f"One configuration finished: {able[0].name}", "", able, able[0], _caveats(able, criteria), ())
    rankings: list[tuple[str, Ranking]] = []
    left = able
    for measure in criteria:
        ranking = rank(
            [measure.values(one.finished) for one in left],
            higher_is_better=measure.higher_is_better,
            alpha=_alpha(measure, criteria),
        )
        rankings.append((measure.name, ranking))
        if ranking.best is not None:
            return _best(measure, ranking, left, able, criteria, rankings)
        # Without values there is nothing to tell them apart by.
        left = [left[number] for number in ranking.tied] or left
    return _tie(left, able, criteria, rankings)


def _criteria(able: Sequence[Configuration], measures: Sequence[Measure]) -> list[Measure]:
    """What every configuration has measured. Speed is time again, and money is time at one price."""
    known = [measure for measure in measures if all(measure.values(c.finished) for c in able)]
    time_s = next((measure for measure in known if measure.name == TIME), None)
    money = next((measure for measure in known if measure.name == MONEY), None)
    if time_s is not None:
        known = [measure for measure in known if measure.name != SPEED]
    if time_s is not None and money is not None and has_one_price(able, time_s, money):
        known = [measure for measure in known if measure.name != MONEY]
    if is_time_held_equal(able):
        known = [measure for measure in known if measure.name != TIME]
    return known


def has_one_price(able: Sequence[Configuration], time_s: Measure, money: Measure) -> bool:
    """Whether money is time at one price, for all."""
    prices = {
        round(usd / seconds, 12)
        for one in able
        for usd, seconds in zip(money.values(one.finished), time_s.values(one.finished), strict=True)
    }
    return len(prices) <= 1


def is_time_held_equal(able: Sequence[Configuration]) -> bool:
    """Whether all were given the same time, so that none of them can have the least of it."""
    budgets = {one.settings.get("train.seconds") for one in able}
    return len(budgets) == 1 and None not in budgets


def _alpha(measure: Measure, criteria: Sequence[Measure]) -> float:
    if len(criteria) == 1:
        return ALPHA
    if measure is criteria[0]:
        return ALPHA * _QUALITY_SHARE
    return ALPHA * (1 - _QUALITY_SHARE) / (len(criteria) - 1)


def _best(
    measure: Measure,
    ranking: Ranking,
    left: Sequence[Configuration],
    able: Sequence[Configuration],
    criteria: Sequence[Measure],
    rankings: Sequence[tuple[str, Ranking]],
) -> Recommendation:
    assert ranking.best is not None, "asked where a best is shown"
    chosen, narrowest = left[ranking.best], ranking.narrowest
    assert narrowest is not None, "a best is better than another one"
    rival = left[narrowest.ahead_of]
    estimate = measure.estimate(chosen.finished)
    assert estimate is not None, "it was ranked by this"
    value = measured_text(estimate.value, estimate.low, estimate.high, measure.unit)
    lead = _lead(measure, narrowest)
    which = _superlative(measure)
    if len(left) == len(able):
        closest = ", the closest" if len(able) > 2 else ""  # noqa: PLR2004
        detail = f"Its {measure.name} of {value} is the {which}, {lead} than that of {rival.name}{closest}."
    else:
        detail = (
            f"No difference in {criteria[0].name} is shown between {_listed(left)}. Of these, {_short(chosen)} has the "
            f"{which} {measure.name}: {value}, {lead} than {_short(rival)}."
        )
    caveats = _caveats(able, criteria)
    return _made(f"Winner: {chosen.name}", detail, able, chosen, caveats, rankings, decided_by=measure.name)


def _tie(
    left: Sequence[Configuration],
    able: Sequence[Configuration],
    criteria: Sequence[Measure],
    rankings: Sequence[tuple[str, Ranking]],
) -> Recommendation:
    """Several may be best. Taking the cheapest by its mean costs little where it is wrong; one or two runs do not say
    what it would cost, so none of them is chosen.
    """
    cheapest = next((m for name in (MONEY, TIME, MEMORY) for m in criteria if m.name == name), None)
    compared = _joined([measure.name for measure in criteria], "or") or "anything measured"
    chosen = None
    few = [one for one in left if any(len(measure.values(one.finished)) < FEWEST_RUNS for measure in criteria)]
    if few:
        headline = f"Tie: {_why_open(few, left)}, so no winner can be shown"
        detail = f"So far {_leads(left, criteria)}."
    elif cheapest is not None:
        headline = f"Tie: no difference in {compared} is shown between {_listed(left)}"
        estimates = [(one, cheapest.estimate(one.finished)) for one in left]
        known = [(one, estimate) for one, estimate in estimates if estimate is not None]
        assert len(known) == len(left), "criteria are measured by all"
        chosen, estimate = min(known, key=lambda pair: (pair[1].value, pair[0].key))
        value = measured_text(estimate.value, estimate.low, estimate.high, cheapest.unit)
        which = "smallest" if cheapest.name == MEMORY else "cheapest"
        detail = (
            f"Take the {which}: {_short(chosen)} has the lowest {cheapest.name} on average, {value}, though that is "
            "not shown to be lower than the others' either."
        )
    else:
        headline = f"Tie: no difference in {compared} is shown between {_listed(left)}"
        detail = ""
    behind = [one for one in able if one not in left]
    if behind:
        detail += f" {_listed(behind)} {'is' if len(behind) == 1 else 'are'} shown to be worse."
    return _made(headline, detail.strip(), able, chosen, _caveats(able, criteria), rankings)


def _why_open(few: Sequence[Configuration], left: Sequence[Configuration]) -> str:
    most = max(len(one.finished) for one in few)
    runs = "one run" if most == 1 else f"fewer than {FEWEST_RUNS} runs"
    if len(few) == len(left):
        return f"{runs} each"
    return f"{_listed(few)} {'has' if len(few) == 1 else 'have'} {'only ' if most == 1 else ''}{runs}"


def _leads(left: Sequence[Configuration], criteria: Sequence[Measure]) -> str:
    """Who leads in what, by the means; none of it is shown."""
    phrases: dict[str, list[str]] = {}
    for measure in criteria:
        known = [(one, estimate) for one in left if (estimate := measure.estimate(one.finished)) is not None]
        sign = -1.0 if measure.higher_is_better else 1.0
        leader, estimate = min(known, key=lambda pair: (sign * (pair[1].value or 0.0), pair[0].key))
        value = measured_text(estimate.value, estimate.low, estimate.high, measure.unit)
        phrases.setdefault(leader.name, []).append(f"the {_superlative(measure)} {measure.name}, {value}")
    return "; ".join(f"{name} has {', and '.join(found)}" for name, found in phrases.items())


def _caveats(able: Sequence[Configuration], criteria: Sequence[Measure]) -> list[str]:
    caveats = []
    quality = next((measure for measure in criteria if measure.name not in (TIME, SPEED, MEMORY, MONEY)), None)
    if able[0].runs[0].kind != "training":
        caveats.append(f"a {able[0].runs[0].kind} compares speed and memory, not quality")
    elif quality is None:
        caveats.append("quality was not measured the same way in all of them, so it was not considered")
    elif quality.name == HELD_OUT_LOSS:
        caveats.append("quality is the held-out loss, which says little about how images look")
    unlike = environments_apart(able)
    if unlike:
        caveats.append(f"different environments: {unlike}")
    return caveats


def _made(
    headline: str,
    detail: str,
    able: Sequence[Configuration],
    chosen: Configuration | None,
    caveats: Sequence[str],
    rankings: Sequence[tuple[str, Ranking]],
    *,
    decided_by: str | None = None,
) -> Recommendation:
    runs = tuple(run.run_id for one in able for run in one.finished)
    caveat = _capital("; ".join(caveats)) + "." if caveats else None
    finding = Finding(sentence=f"{headline}. {detail}".strip(), evidence=runs, caveat=caveat)
    return Recommendation(
        headline, detail, finding, chosen, decided_by is not None, decided_by, tuple(rankings), tuple(able)
    )


def _nothing(headline: str, found: Sequence[Configuration]) -> Recommendation:
    runs = tuple(run.run_id for one in found for run in one.runs)
    return Recommendation(headline, "", Finding(sentence=f"{headline}.", evidence=runs), None, False, None, ())


def _lead(measure: Measure, margin: Margin) -> str:
    """The lead over the nearest, with its interval; more is better in some measures, less in others."""
    high = margin.high if margin.high is None else min(margin.high, measure.bounds.width or margin.high)
    text = measured_text(margin.value, margin.low, high, measure.unit)
    return f"{text} {'higher' if measure.higher_is_better else 'lower'}"


def _superlative(measure: Measure) -> str:
    return "highest" if measure.higher_is_better else "lowest"


def _listed(found: Sequence[Configuration]) -> str:
    names = [one.name for one in found]
    if len(names) > _MOST_NAMES:
        names = [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1} more"]
    return _joined(names, "and")


def _joined(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}" if names else ""


def _short(one: Configuration) -> str:
    """Of a configuration that was named before."""
    return one.letter or one.label


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
