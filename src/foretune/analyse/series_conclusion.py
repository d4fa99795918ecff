"""The answer of a whole series in one to three sentences: speed, quality and memory, cost; ties and doubts are named."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.analyse.inference_study import IMAGE_STEPS
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.series_answers import plain_number, rate_words
from foretune.analyse.study_cells import COST, INFERENCE_SPEED, PEAK_MEMORY, SAMPLE_RATE, STEPS_MADE, TRAINING_SPEED
from foretune.analyse.study_comparing import BREAK_EVEN
from foretune.core.units import measured_text
from foretune.stats.deciding import SMALLEST_DIFFERENCE

_VERBS = {
    TRAINING_SPEED: "trains", SAMPLE_RATE: "trains", INFERENCE_SPEED: "denoises", IMAGE_STEPS: "denoises",
}  # fmt: skip
_NAMES = {PEAK_MEMORY: "peak memory", COST: "cost of the same steps"}
_MOST_NAMED = 3
_SAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class ConcludedPart:
    """The numbers of one study of the series."""

    study: Mapping[str, Any]
    forecasts: Sequence[Mapping[str, Any]]
    model: str
    """The model that forecasts are for."""


def conclusion(parts: Sequence[ConcludedPart]) -> tuple[str, ...]:
    """Up to three sentences. Nothing is claimed of what has fewer than three seeds."""
    speed = [clause for part in parts for clause in _clauses(part.study, is_speed=True)]
    quality = [clause for part in parts for clause in _clauses(part.study, is_speed=False)]
    costs = [*(clause for part in parts for clause in _cost_clauses(part.study)), *_forecast_clauses(parts)]
    sentences = [
        f"{name}: {'; '.join(clauses)}."
        for name, clauses in (("Speed", speed), ("Quality and memory", quality), ("Cost", costs))
        if clauses
    ]
    doubt = _doubt([part.study for part in parts])
    if sentences and doubt is not None:
        sentences[0] = f"{doubt} {sentences[0]}"
    return tuple(sentences)


def _doubt(studies: Sequence[Mapping[str, Any]]) -> str | None:
    """What is said before anything that rests on too few repeats."""
    pairs = [one["num_pairs"] for study in studies for one in study["comparisons"]]
    if not pairs or min(pairs) >= FEWEST_RUNS:
        return None
    if max(pairs) < FEWEST_RUNS:
        return f"No claim, because it takes {FEWEST_RUNS} seeds and there is {_seeds(max(pairs))}; in these runs:"
    return f"Where fewer than {FEWEST_RUNS} seeds were run, the mean is named and nothing is claimed."


def _seeds(num: int) -> str:
    return "one" if num == 1 else f"only {num}"


def _clauses(study: Mapping[str, Any], *, is_speed: bool) -> Iterator[str]:
    """One clause for each thing that was measured, in the first setting; other settings where they differ from it."""
    found: dict[str, list[str]] = {}
    for title in dict.fromkeys(one["title"] for one in study["comparisons"]):
        if title in (STEPS_MADE, COST) or (title in _VERBS) != is_speed:
            continue
        text = _over_settings(study, title)
        if text is not None:
            found.setdefault(text, []).append(_name(title))
    if not is_speed:
        yield from _likeness(study)
    for text, names in found.items():
        # Things with the same outcome are named together.
        yield text if is_speed else f"{_joined(names, 'and')}: {text}"
    if is_speed:
        yield from (one["sentence"].rstrip(".") for one in study["findings"] if BREAK_EVEN in one["sentence"])


def _likeness(study: Mapping[str, Any]) -> Iterator[str]:
    """Of ways to sample: whose images are least like those of the first one."""
    for title in dict.fromkeys(
        title for row in study["rows"] for title in row["values"] if title.startswith("psnr to ")
    ):
        values = _values(study, title, study["rows"][0]["setting"])
        least = min(values, key=values.__getitem__)
        yield f"images of {least} are least like those of {title.removeprefix('psnr to ').partition(', ')[0]}, PSNR {values[least]:.3g} dB"


def _over_settings(study: Mapping[str, Any], title: str) -> str | None:
    settings = list(dict.fromkeys(one["setting"] for one in study["comparisons"] if one["title"] == title))
    texts: dict[str, list[str]] = {}
    for setting in settings:
        texts.setdefault(_outcome(study, title, setting), []).append(setting)
    if len(texts) == 1:
        return next(iter(texts))
    return ", ".join(f"{text} ({_joined(names, 'and')})" for text, names in texts.items())


def _outcome(study: Mapping[str, Any], title: str, setting: str) -> str:
    compared = [one for one in study["comparisons"] if (one["title"], one["setting"]) == (title, setting)]
    first = compared[0]["first"]
    if min(one["num_pairs"] for one in compared) < FEWEST_RUNS:
        return _by_means(study, title, setting)
    by_answer: dict[str, list[Mapping[str, Any]]] = {}
    for one in compared:
        by_answer.setdefault(one["answer"], []).append(one)
    better, open_ = by_answer.get("better", []), by_answer.get("inconclusive", [])
    if better:
        sign = 1 if _is_higher_better(study, title) else -1
        best = max(better, key=lambda one: sign * one["value"])
        return f"{_ahead(best, title)} than {first}" if title not in _VERBS else f"{_ahead(best, title)} as {first}"
    equal = [one["other"] for one in by_answer.get("no difference shown", [])]
    undecided = f"not decided between {_names([first, *(one['other'] for one in open_)])}"
    if open_:
        return f"{undecided}, {_names(equal)} like {first}" if equal else undecided
    if equal:
        return f"a tie, no difference shown between {_names([first, *equal])}"
    return f"{first} {_VERBS[title]} fastest" if title in _VERBS else f"{first} is best"


def _ahead(best: Mapping[str, Any], title: str) -> str:
    if title in _VERBS:
        ratio, _, interval = measured_text(best["value"], best["low"], best["high"], "").partition(" (")
        return f"{best['other']} {_VERBS[title]} {ratio} times{f' ({interval}' if interval else ''} as fast"
    ends = [None if end is None else abs(end) for end in (best["low"], best["high"])]
    low, high = sorted(ends) if None not in ends else (None, None)  # type: ignore[type-var]
    return f"{best['other']} is better by {measured_text(abs(best['value']), low, high, _unit(title))}"


def _by_means(study: Mapping[str, Any], title: str, setting: str) -> str:
    """Who was ahead in too few runs; a tie where the means are close."""
    values = _values(study, title, setting)
    best = (max if _is_higher_better(study, title) else min)(values, key=values.__getitem__)
    close = [
        name for name, value in values.items() if abs(value - values[best]) <= SMALLEST_DIFFERENCE * abs(values[best])
    ]
    if len(close) > 1:
        rest = "" if len(close) < len(values) else " all"
        return f"{_names(close)} were{rest} within {SMALLEST_DIFFERENCE:.0%} of each other".replace("%", " %")
    if title in _VERBS:
        last = min(values, key=values.__getitem__)
        return f"{best} {_past(title)} fastest, {plain_number(values[best] / values[last])} times as fast as {last}"
    worst = (min if _is_higher_better(study, title) else max)(values, key=values.__getitem__)
    unit = _unit(title)
    shown = [measured_text(values[name], None, None, unit) for name in (best, worst)]
    return f"{best} was best with {shown[0]}, {worst} had {shown[1]}"


def _cost_clauses(study: Mapping[str, Any]) -> Iterator[str]:
    """What the same steps cost on each machine, and what that means beside their speed."""
    for setting in dict.fromkeys(row["setting"] for row in study["rows"]):
        costs = _values(study, COST, setting)
        if study["protocol"] != "equal-steps" or len(costs) < 2:  # noqa: PLR2004
            continue
        cheap, dear = (pick(costs, key=costs.__getitem__) for pick in (min, max))
        rates = _values(study, TRAINING_SPEED, setting)
        fast = max(rates, key=rates.__getitem__)
        choice = f"{fast} for time and money" if fast == cheap else f"{fast} for time, {cheap} for money"
        is_shown = _is_shown(study, COST, setting, cheap) and _is_shown(study, TRAINING_SPEED, setting, fast)
        advice = f"take {choice}" if is_shown else f"so far {choice}, which is not shown"
        yield f"the same steps cost {_usd(costs[cheap])} on {cheap} and {_usd(costs[dear])} on {dear}; {advice}"


def _is_shown(study: Mapping[str, Any], title: str, setting: str, name: str) -> bool:
    """Whether a configuration is shown to be better than the first one; or, if it is the first, than all others."""
    compared = [one for one in study["comparisons"] if (one["title"], one["setting"]) == (title, setting)]
    if name == compared[0]["first"]:
        return all(one["answer"] == "worse" for one in compared)
    return any(one["other"] == name and one["answer"] == "better" for one in compared)


def _forecast_clauses(parts: Sequence[ConcludedPart]) -> Iterator[str]:
    """The fastest and the cheapest of everything that was forecast with a price, for each model once."""
    for model in dict.fromkeys(part.model for part in parts if part.forecasts):
        rows = [
            row
            for part in parts
            if part.model == model
            for row in part.forecasts
            if SAMPLE_RATE in row["values"] and row.get("usd_per_hour") is not None
        ]
        if not rows:
            continue
        fast = max(rows, key=lambda row: row["values"][SAMPLE_RATE][0])
        cheap = min(rows, key=_usd_of_samples)
        told = f"forecast for {model}: {_place(fast)} is fastest with {rate_words(fast)} at {_price(fast)}"
        if _price(cheap) == _price(fast):
            yield f"{told}, and none is cheaper"
        else:
            yield f"{told}, {_place(cheap)} is cheapest with {rate_words(cheap)} at {_price(cheap)}"


def _usd_of_samples(row: Mapping[str, Any]) -> float:
    return float(row["usd_per_hour"] / row["values"][SAMPLE_RATE][0] / 3600 * _SAMPLES)


def _price(row: Mapping[str, Any]) -> str:
    return f"{_usd(_usd_of_samples(row))} for {_SAMPLES:,} samples"


def _place(row: Mapping[str, Any]) -> str:
    num = f"{row['num_devices']} x " if row["num_devices"] > 1 else ""
    return f"{row['configuration']} on {num}{row['device']}"


def _values(study: Mapping[str, Any], title: str, setting: str) -> dict[str, float]:
    return {
        row["configuration"]: row["values"][title]["value"]
        for row in study["rows"]
        if row["setting"] == setting and title in row["values"]
    }


def _is_higher_better(study: Mapping[str, Any], title: str) -> bool:
    return any(axis["title"] == title and axis["higher_is_better"] is True for axis in study["axes"])


def _past(title: str) -> str:
    return {"trains": "trained", "denoises": "denoised"}[_VERBS[title]]


def _name(title: str) -> str:
    return _NAMES.get(title, title.partition(", ")[0].replace("psnr", "PSNR").replace("ssim", "SSIM"))


def _unit(title: str) -> str:
    return title.partition(", ")[2]


def _usd(usd: float) -> str:
    return measured_text(usd, None, None, "usd")


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return _joined([*names[:_MOST_NAMED], f"{more} more"] if more > 1 else names, "and")


def _joined(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
