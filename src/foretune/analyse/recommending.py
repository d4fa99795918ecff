"""Which configuration to take, and how sure that is. Quality counts first, then time, memory and money."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretune.analyse.comparability import overshot_clock, too_few_steps
from foretune.analyse.groups import Configuration, environments_apart
from foretune.analyse.ranking import ALPHA, Margin, Ranking, rank
from foretune.analyse.run_numbers import HELD_OUT_LOSS, MEMORY, MONEY, SPEED, TIME, Measure
from foretune.core.units import measured_text
from foretune.core.values import Finding

_QUALITY_SHARE = 0.6
"""Of the chance to be wrong, which all criteria share: the first gets the most of it, the others the rest."""
_MOST_NAMES = 4


@dataclass(frozen=True)
class Recommendation:
    """What to take, as a finding, with the rankings it was made of."""

    finding: Finding
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
        return _nothing("No run has finished, so there is nothing to recommend.", found)
    left_out = _left_out(finished) if len(finished) > 1 else {}
    able = [one for one in finished if one.key not in left_out]
    if not able:
        whys = "; ".join(f"{_quoted(one)}: {left_out[one.key]}" for one in finished[:_MOST_NAMES])
        return _nothing(f"Nothing is recommended. {_capital(whys)}.", finished)
    recommendation = _among(able, measures)
    if not left_out:
        return recommendation
    whys = "; ".join(f"{_quoted(one)}: {left_out[one.key]}" for one in finished if one.key in left_out)
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
        sentence = f"There is one configuration, {_quoted(able[0])}: nothing to choose from."
        return _made(sentence, able, able[0], _caveats(able, criteria), (), decided_by=None, is_shown=False)
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
    return _none_shown(left, able, criteria, rankings)


def _criteria(able: Sequence[Configuration], measures: Sequence[Measure]) -> list[Measure]:
    """What every configuration has measured. Money that is time at one price says nothing of its own."""
    known = [measure for measure in measures if measure.name != SPEED and all(measure.values(c.finished) for c in able)]
    time_s = next((measure for measure in known if measure.name == TIME), None)
    money = next((measure for measure in known if measure.name == MONEY), None)
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
        sentence = f"Take {_quoted(chosen)}: its {measure.name} of {value} is the {which}, {lead} than {_quoted(rival)}"
        sentence += ", the nearest." if len(able) > 2 else "."  # noqa: PLR2004
    else:
        open_in = criteria[0].name
        sentence = (
            f"Take {_quoted(chosen)}. No best in {open_in} is shown between {_listed(left)}; of these it has the "
            f"{which} {measure.name}, {value}, {lead} than {_quoted(rival)}."
        )
    caveats = _caveats(able, criteria)
    return _made(sentence, able, chosen, caveats, rankings, decided_by=measure.name, is_shown=True)


def _none_shown(
    left: Sequence[Configuration],
    able: Sequence[Configuration],
    criteria: Sequence[Measure],
    rankings: Sequence[tuple[str, Ranking]],
) -> Recommendation:
    """Several may be best. The cheapest by its mean is a choice that costs little where it is wrong; of single runs
    nothing tells what it costs, so that nothing is chosen.
    """
    cheapest = next((m for name in (MONEY, TIME, MEMORY) for m in criteria if m.name == name), None)
    asked = ", ".join(measure.name for measure in criteria) or "anything measured"
    sentence = f"No best is shown between {_listed(left)} (by {asked})"
    chosen = None
    single = [one for one in left if any(len(measure.values(one.finished)) == 1 for measure in criteria)]
    if single:
        sentence += f": {_why_open(single, left)}. So far {_leads(left, criteria)}."
    elif cheapest is not None:
        estimates = [(one, cheapest.estimate(one.finished)) for one in left]
        known = [(one, estimate) for one, estimate in estimates if estimate is not None]
        assert len(known) == len(left), "criteria are measured by all"
        chosen, estimate = min(known, key=lambda pair: (pair[1].value, pair[0].key))
        value = measured_text(estimate.value, estimate.low, estimate.high, cheapest.unit)
        which = "smallest" if cheapest.name == MEMORY else "cheapest"
        sentence += f": take the {which} of them. {_quoted(chosen)} had the least {cheapest.name} on average, {value}, "
        sentence += "which is not shown to be less than the others'."
    else:
        sentence += "."
    behind = [one for one in able if one not in left]
    if behind:
        sentence += f" {_listed(behind)} {'is' if len(behind) == 1 else 'are'} shown to be behind."
    return _made(sentence, able, chosen, _caveats(able, criteria), rankings, decided_by=None, is_shown=False)


def _why_open(single: Sequence[Configuration], left: Sequence[Configuration]) -> str:
    if len(single) == len(left):
        return "neither was repeated" if len(left) == 2 else "none of them was repeated"  # noqa: PLR2004
    return f"{_listed(single)} {'has' if len(single) == 1 else 'have'} one run only"


def _leads(left: Sequence[Configuration], criteria: Sequence[Measure]) -> str:
    """Who leads in what, by the means, which is not shown."""
    told: dict[str, list[str]] = {}
    for measure in criteria:
        known = [(one, estimate) for one in left if (estimate := measure.estimate(one.finished)) is not None]
        sign = -1.0 if measure.higher_is_better else 1.0
        leader, estimate = min(known, key=lambda pair: (sign * (pair[1].value or 0.0), pair[0].key))
        value = measured_text(estimate.value, estimate.low, estimate.high, measure.unit)
        told.setdefault(_quoted(leader), []).append(f"the {_superlative(measure)} {measure.name}, {value}")
    return "; ".join(f"{name} has {' and '.join(phrases)}" for name, phrases in told.items())


def _caveats(able: Sequence[Configuration], criteria: Sequence[Measure]) -> list[str]:
    caveats = []
    quality = next((measure for measure in criteria if measure.name not in (TIME, MEMORY, MONEY)), None)
    if quality is None:
        caveats.append("quality was not measured alike in all of them, so it has no say")
    elif quality.name == HELD_OUT_LOSS:
        caveats.append("quality is the held-out loss, which says little about how images look")
    unlike = environments_apart(able)
    if unlike:
        caveats.append(f"across environments: {unlike}")
    return caveats


def _made(
    sentence: str,
    able: Sequence[Configuration],
    chosen: Configuration | None,
    caveats: Sequence[str],
    rankings: Sequence[tuple[str, Ranking]],
    *,
    decided_by: str | None,
    is_shown: bool,
) -> Recommendation:
    runs = tuple(run.run_id for one in able for run in one.finished)
    caveat = _capital("; ".join(caveats)) + "." if caveats else None
    finding = Finding(sentence=sentence, evidence=runs, caveat=caveat)
    return Recommendation(finding, chosen, is_shown, decided_by, tuple(rankings), tuple(able))


def _nothing(sentence: str, found: Sequence[Configuration]) -> Recommendation:
    runs = tuple(run.run_id for one in found for run in one.runs)
    return Recommendation(Finding(sentence=sentence, evidence=runs), None, False, None, ())


def _lead(measure: Measure, margin: Margin) -> str:
    """The lead over the nearest, with its interval; more is better in some measures, less in others."""
    high = margin.high if margin.high is None else min(margin.high, measure.bounds.width or margin.high)
    text = measured_text(margin.value, margin.low, high, measure.unit)
    return f"{text} {'higher' if measure.higher_is_better else 'lower'}"


def _superlative(measure: Measure) -> str:
    return "highest" if measure.higher_is_better else "lowest"


def _listed(found: Sequence[Configuration]) -> str:
    labels = [_quoted(one) for one in found]
    if len(labels) > _MOST_NAMES:
        labels = [*labels[: _MOST_NAMES - 1], f"{len(labels) - _MOST_NAMES + 1} more"]
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _quoted(one: Configuration) -> str:
    """Labels have commas in them."""
    return f"“{one.label}”"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
