"""The answer of a series in one to three sentences: speed, quality and memory, cost; ties and doubts are named."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.analyse.inference_study import IMAGE_STEPS
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.series_answers import devices_text, plain_number, rate_words, unfit_text
from foretune.analyse.study_cells import (
    INFERENCE_SPEED,
    PEAK_MEMORY,
    SAMPLE_RATE,
    SAMPLES_COST,
    STEPS_MADE,
    TRAINING_SPEED,
    spelled,
)
from foretune.analyse.study_comparing import BREAK_EVEN
from foretune.core.units import measured_text
from foretune.stats.deciding import SMALLEST_DIFFERENCE

_VERBS = {
    TRAINING_SPEED: "trains", SAMPLE_RATE: "trains", INFERENCE_SPEED: "denoises", IMAGE_STEPS: "denoises",
}  # fmt: skip
_MOST_NAMED = 3
_SAMPLES, _MANY_SAMPLES = 1000, 1_000_000
"""For which a price is named; for many where so few cost less than a cent."""
_CENT = 0.01


@dataclass(frozen=True, kw_only=True)
class ConcludedPart:
    """The numbers of one study of the series."""

    study: Mapping[str, Any]
    forecasts: Sequence[Mapping[str, Any]]
    model: str
    """The model that forecasts are for."""


@dataclass(frozen=True)
class _Clause:
    """A part of a sentence."""

    text: str
    num: int | None = None
    """The seeds, repeats or images that it rests on; None for a forecast."""
    unit: str = "seed"

    @property
    def is_claim(self) -> bool:
        return self.num is None or self.num >= FEWEST_RUNS

    @property
    def doubt(self) -> str:
        return f" ({f'one {self.unit}' if self.num == 1 else f'{self.num} {self.unit}s'}, no claim)"


def conclusion(parts: Sequence[ConcludedPart]) -> tuple[str, ...]:
    """Up to three sentences. Nothing is claimed of what has fewer than three seeds."""
    found = {
        "Speed": [clause for part in parts for clause in _speed(part.study)],
        "Quality and memory": [*_quality([part.study for part in parts]), *_unfit(parts)],
        "Cost": [*(clause for part in parts for clause in _costs(part.study)), *_forecasts(parts)],
    }
    sentences = tuple(_sentence(name, clauses) for name, clauses in found.items() if clauses)
    return sentences or ("No answer: no two configurations have finished.",)


def _sentence(name: str, clauses: Sequence[_Clause]) -> str:
    """The doubt stands once where it is that of all measured clauses, else behind each."""
    measured = [clause for clause in clauses if clause.num is not None]
    is_shared = len({clause.unit for clause in measured}) == 1
    if is_shared and not any(clause.is_claim for clause in measured):
        doubt = max(measured, key=lambda clause: clause.num or 0).doubt
        return f"{name}{doubt}: {'; '.join(clause.text for clause in clauses)}."
    texts = (clause.text if clause.is_claim else f"{clause.text}{clause.doubt}" for clause in clauses)
    return f"{name}: {'; '.join(texts)}."


def _num_runs(study: Mapping[str, Any], title: str) -> int:
    """The fewest seeds of a comparison, or of a configuration if nothing was compared."""
    pairs = [one["num_pairs"] for one in study["comparisons"] if one["title"] == title]
    return int(min(pairs or [len(row["values"][title]["by_seed"]) for row in study["rows"] if title in row["values"]]))


def _unit(study: Mapping[str, Any]) -> str:
    return "repeat" if study["protocol"] == "inference" else "seed"


def _speed(study: Mapping[str, Any]) -> Iterator[_Clause]:
    """Who trains or denoises fastest; of compiling, when it has paid."""
    for title in dict.fromkeys(one["title"] for one in study["comparisons"]):
        if title in _VERBS:
            yield _Clause(_over_settings(study, title), _num_runs(study, title), _unit(study))
    yield from (_Clause(one["sentence"].rstrip(".")) for one in study["findings"] if BREAK_EVEN in one["sentence"])


def _quality(studies: Sequence[Mapping[str, Any]]) -> Iterator[_Clause]:
    """Things with the same outcome are named together, and so are outcomes of the same thing in several studies."""
    by_subject: dict[tuple[str, int, str], list[str]] = {}
    for study in studies:
        if study["protocol"] == "inference":
            yield from _likeness(study)
        found: dict[tuple[str, int], list[str]] = {}
        for title in dict.fromkeys(one["title"] for one in study["comparisons"]):
            if title not in (*_VERBS, STEPS_MADE, SAMPLES_COST):
                key = _over_settings(study, title), _num_runs(study, title)
                found.setdefault(key, []).append(_name(title))
        for (text, num), names in found.items():
            by_subject.setdefault((_joined(names, "and"), num, _unit(study)), []).append(text)
    for (subject, num, unit), texts in by_subject.items():
        yield _Clause(f"{subject}: {', '.join(texts)}", num, unit)


def _unfit(parts: Sequence[ConcludedPart]) -> Iterator[_Clause]:
    """Forecasts that do not fit, for each model and device once."""
    texts: dict[str, None] = {}
    for part in parts:
        for device in dict.fromkeys(row["device"] for row in part.forecasts):
            rows = [row for row in part.forecasts if row["device"] == device]
            if text := unfit_text(rows, devices_text(device, rows)):
                texts[f"forecast for {part.model}: {text}"] = None
    yield from map(_Clause, texts)


def _likeness(study: Mapping[str, Any]) -> Iterator[_Clause]:
    """Names the way to sample whose images differ most from those of the first one."""
    for title in dict.fromkeys(
        title for row in study["rows"] for title in row["values"] if title.startswith("psnr to ")
    ):
        values = _values(study, title, study["rows"][0]["setting"])
        least = min(values, key=values.__getitem__)
        first = title.removeprefix("psnr to ").partition(", ")[0]
        text = f"images of {least} are least like those of {first}, PSNR {values[least]:.3g} dB"
        yield _Clause(text, study["num_images"], "image")


def _over_settings(study: Mapping[str, Any], title: str) -> str:
    """The outcome in all settings, or that of each where they differ."""
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
        return _ahead(max(better, key=lambda one: sign * one["value"]), title, _values(study, title, setting))
    equal = [one["other"] for one in by_answer.get("no difference shown", [])]
    if open_:
        names = [first, *(one["other"] for one in open_)]
        if title in _VERBS:
            undecided = f"whether {_names(names, 'or')} {_VERBS[title]} fastest is not decided"
            alike = f"as fast as {first}"
        else:
            undecided, alike = f"not decided between {_names(names)}", f"like {first}"
        return f"{undecided}; {_names(equal)} {_is(equal)} {alike}" if equal else undecided
    if equal:
        speed = " in speed" if title in _VERBS else ""
        return f"no difference{speed} shown between {_names([first, *equal])}"
    return f"{first} {_VERBS[title]} fastest" if title in _VERBS else f"{first} is best"


def _ahead(best: Mapping[str, Any], title: str, values: Mapping[str, float]) -> str:
    if title in _VERBS:
        ratio, _, interval = measured_text(best["value"], best["low"], best["high"], "").partition(" (")
        shown = f" ({interval}" if interval else ""
        return f"{best['other']} {_VERBS[title]} {ratio} times{shown} as fast as {best['first']}"
    if title == PEAK_MEMORY:
        share = f"{1 - values[best['other']] / values[best['first']]:.0%}".replace("%", " %")
        return f"{best['other']} needs {share} less than {best['first']}"
    return f"{best['other']} is better than {best['first']}"


def _by_means(study: Mapping[str, Any], title: str, setting: str) -> str:
    """Who was ahead in too few runs; a tie where the means are close."""
    values = _values(study, title, setting)
    best = (max if _is_higher_better(study, title) else min)(values, key=values.__getitem__)
    close = _close(values, best)
    if len(close) > 1:
        within = f"within {SMALLEST_DIFFERENCE:.0%} of each other".replace("%", " %")
        return f"{_names(close)} {within}" if len(close) == len(values) else f"{_names(close)} ahead, {within}"
    if title in _VERBS:
        last = min(values, key=values.__getitem__)
        return f"{best} {_past(title)} fastest, {plain_number(values[best] / values[last])} times as fast as {last}"
    return f"{best} needed least" if title == PEAK_MEMORY else f"{best} was best"


def _close(values: Mapping[str, float], best: str) -> list[str]:
    """The best and all whose averages hardly differ from it."""
    most = SMALLEST_DIFFERENCE * abs(values[best])
    return [name for name, value in values.items() if abs(value - values[best]) <= most]


def _costs(study: Mapping[str, Any]) -> Iterator[_Clause]:
    """The cost of samples on each machine, with advice for time and money. Costs are per sample, because machines with
    different numbers of devices do unequal work in the same number of steps.
    """
    for setting in dict.fromkeys(row["setting"] for row in study["rows"]):
        costs = _values(study, SAMPLES_COST, setting)
        if study["protocol"] != "equal-steps" or len(costs) < 2:  # noqa: PLR2004
            continue
        cheap, dear = (pick(costs, key=costs.__getitem__) for pick in (min, max))
        num_samples = _SAMPLES if costs[cheap] >= _CENT else _MANY_SAMPLES
        usd = {name: _usd(cost * num_samples / _SAMPLES) for name, cost in costs.items()}
        prices = f"{num_samples:,} samples cost {usd[cheap]} on {cheap} and {usd[dear]} on {dear}"
        num_runs = min(_num_runs(study, title) for title in (SAMPLES_COST, TRAINING_SPEED))
        yield _Clause(f"{prices}; {_advice(study, setting, costs, has_intervals=num_runs >= FEWEST_RUNS)}", num_runs)


def _advice(study: Mapping[str, Any], setting: str, costs: Mapping[str, float], *, has_intervals: bool) -> str:
    """Advice for time and for money. Without a shown difference, it names the best averages and all that are close."""
    rates = _values(study, TRAINING_SPEED, setting)
    cheap, fast = min(costs, key=costs.__getitem__), max(rates, key=rates.__getitem__)
    if _is_shown(study, SAMPLES_COST, setting, cheap) and _is_shown(study, TRAINING_SPEED, setting, fast):
        return f"take {fast} for time and money" if fast == cheap else f"take {fast} for time, {cheap} for money"
    fastest, cheapest = _close(rates, fast), _close(costs, cheap)
    if fastest == cheapest:
        averages = f"{_names(fastest)} {_has(fastest)} the best averages in speed and cost"
    else:
        speed = f"{_names(fastest)} {_has(fastest)} the best average speed"
        averages = f"{speed}, {_names(cheapest)} the lowest average cost"
    return f"{averages}, but the intervals do not confirm it" if has_intervals else averages


def _is_shown(study: Mapping[str, Any], title: str, setting: str, name: str) -> bool:
    """True if a configuration is shown to be the best. Each is compared with the first one only, so two others differ
    if their intervals do not overlap.
    """
    compared = {one["other"]: one for one in study["comparisons"] if (one["title"], one["setting"]) == (title, setting)}
    num_others = len(_values(study, title, setting)) - 1
    if not compared or len(compared) < num_others:
        return False
    best = compared.get(name)
    if best is None:
        return all(one["answer"] == "worse" for one in compared.values())
    others = [one for one in compared.values() if one is not best]
    return best["answer"] == "better" and all(
        one["answer"] == "worse" or _is_behind(one, best, higher_is_better=_is_higher_better(study, title))
        for one in others
    )


def _is_behind(one: Mapping[str, Any], best: Mapping[str, Any], *, higher_is_better: bool) -> bool:
    if one["low"] is None or best["low"] is None:
        return False
    return bool(one["high"] < best["low"] if higher_is_better else one["low"] > best["high"])


def _forecasts(parts: Sequence[ConcludedPart]) -> Iterator[_Clause]:
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
        cheap = min(rows, key=lambda row: _usd_of_samples(row, 1))
        num_samples = _SAMPLES if _usd_of_samples(cheap, _SAMPLES) >= _CENT else _MANY_SAMPLES
        prices = [f"{_usd(_usd_of_samples(row, num_samples))} for {num_samples:,} samples" for row in (fast, cheap)]
        fastest = f"forecast for {model}: {_place(fast)} is fastest with {rate_words(fast)} at {prices[0]}"
        if prices[0] == prices[1]:
            yield _Clause(f"{fastest}, and none is cheaper")
        else:
            yield _Clause(f"{fastest}, {_place(cheap)} is cheapest with {rate_words(cheap)} at {prices[1]}")


def _usd_of_samples(row: Mapping[str, Any], num_samples: int) -> float:
    return float(row["usd_per_hour"] / row["values"][SAMPLE_RATE][0] / 3600 * num_samples)


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
    return spelled(title.partition(", ")[0])


def _usd(usd: float) -> str:
    return measured_text(usd, None, None, "usd")


def _names(names: Sequence[str], word: str = "and") -> str:
    more = len(names) - _MOST_NAMED
    return _joined([*names[:_MOST_NAMED], f"{more} more"] if more > 1 else names, word)


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _joined(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
