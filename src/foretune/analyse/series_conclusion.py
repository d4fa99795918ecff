"""The answer of a series in one to three sentences: speed, quality and memory, cost; ties and doubts are named."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.analyse.inference_study import IMAGE_STEPS
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.series_answers import devices_text, plain_number, rate_words, unfit_text
from foretune.analyse.study_cells import (
    COST,
    INFERENCE_SPEED,
    PEAK_MEMORY,
    SAMPLE_RATE,
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
_NAMES = {PEAK_MEMORY: "peak memory", COST: "cost of the same steps"}
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
    num_seeds: int | None = None
    """The seeds that it rests on; None for a forecast."""

    @property
    def is_claim(self) -> bool:
        return self.num_seeds is None or self.num_seeds >= FEWEST_RUNS


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
    measured = [clause for clause in clauses if clause.num_seeds is not None]
    if measured and not any(clause.is_claim for clause in measured):
        doubt = f" ({_seeds(max(clause.num_seeds or 0 for clause in measured))}, no claim)"
        return f"{name}{doubt}: {'; '.join(clause.text for clause in clauses)}."
    texts = (
        clause.text if clause.is_claim else f"{clause.text} ({_seeds(clause.num_seeds or 0)}, no claim)"
        for clause in clauses
    )
    return f"{name}: {'; '.join(texts)}."


def _seeds(num: int) -> str:
    return "one seed" if num == 1 else f"{num} seeds"


def _num_seeds(study: Mapping[str, Any], title: str) -> int:
    return int(min(one["num_pairs"] for one in study["comparisons"] if one["title"] == title))


def _speed(study: Mapping[str, Any]) -> Iterator[_Clause]:
    """Who trains or denoises fastest; of compiling, when it has paid."""
    for title in dict.fromkeys(one["title"] for one in study["comparisons"]):
        if title in _VERBS:
            yield _Clause(_over_settings(study, title), _num_seeds(study, title))
    yield from (_Clause(one["sentence"].rstrip(".")) for one in study["findings"] if BREAK_EVEN in one["sentence"])


def _quality(studies: Sequence[Mapping[str, Any]]) -> Iterator[_Clause]:
    """Things with the same outcome are named together, and so are outcomes of the same thing in several studies."""
    by_subject: dict[tuple[str, int], list[str]] = {}
    for study in studies:
        if study["protocol"] == "inference":
            yield from _likeness(study)
        found: dict[tuple[str, int], list[str]] = {}
        for title in dict.fromkeys(one["title"] for one in study["comparisons"]):
            if title not in (*_VERBS, STEPS_MADE, COST):
                key = _over_settings(study, title), _num_seeds(study, title)
                found.setdefault(key, []).append(_name(title))
        for (text, num_seeds), names in found.items():
            by_subject.setdefault((_joined(names, "and"), num_seeds), []).append(text)
    for (subject, num_seeds), texts in by_subject.items():
        yield _Clause(f"{subject}: {', '.join(texts)}", num_seeds)


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
    """Of ways to sample: whose images are least like those of the first one."""
    for title in dict.fromkeys(
        title for row in study["rows"] for title in row["values"] if title.startswith("psnr to ")
    ):
        values = _values(study, title, study["rows"][0]["setting"])
        least = min(values, key=values.__getitem__)
        first = title.removeprefix("psnr to ").partition(", ")[0]
        yield _Clause(f"images of {least} are least like those of {first}, PSNR {values[least]:.3g} dB", 1)


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
        which = f"which {_VERBS[title]} fastest is not decided" if title in _VERBS else "not decided"
        undecided = f"{which} between {_names([first, *(one['other'] for one in open_)])}"
        return f"{undecided}, {_names(equal)} like {first}" if equal else undecided
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
    close = [
        name for name, value in values.items() if abs(value - values[best]) <= SMALLEST_DIFFERENCE * abs(values[best])
    ]
    if len(close) > 1:
        within = f"within {SMALLEST_DIFFERENCE:.0%} of each other".replace("%", " %")
        return f"{_names(close)} {within}" if len(close) == len(values) else f"{_names(close)} ahead, {within}"
    if title in _VERBS:
        last = min(values, key=values.__getitem__)
        return f"{best} {_past(title)} fastest, {plain_number(values[best] / values[last])} times as fast as {last}"
    return f"{best} needed least" if title == PEAK_MEMORY else f"{best} was best"


def _costs(study: Mapping[str, Any]) -> Iterator[_Clause]:
    """What the same steps cost on each machine, and what that means beside their speed."""
    for setting in dict.fromkeys(row["setting"] for row in study["rows"]):
        costs = _values(study, COST, setting)
        if study["protocol"] != "equal-steps" or len(costs) < 2:  # noqa: PLR2004
            continue
        cheap, dear = (pick(costs, key=costs.__getitem__) for pick in (min, max))
        rates = _values(study, TRAINING_SPEED, setting)
        fast = max(rates, key=rates.__getitem__)
        choice = f"{fast} for time and money" if fast == cheap else f"{fast} for time, {cheap} for money"
        averages = f"{fast} was fastest and cheapest" if fast == cheap else f"{fast} was fastest, {cheap} cheapest"
        is_shown = _is_shown(study, COST, setting, cheap) and _is_shown(study, TRAINING_SPEED, setting, fast)
        advice = f"take {choice}" if is_shown else f"on average {averages}, but these runs do not show it"
        prices = f"the same steps cost {_usd(costs[cheap])} on {cheap} and {_usd(costs[dear])} on {dear}"
        yield _Clause(f"{prices}; {advice}", _num_seeds(study, COST))


def _is_shown(study: Mapping[str, Any], title: str, setting: str, name: str) -> bool:
    """Whether a configuration is shown to be better than the first one; or, if it is the first, than all others."""
    compared = [one for one in study["comparisons"] if (one["title"], one["setting"]) == (title, setting)]
    if name == compared[0]["first"]:
        return all(one["answer"] == "worse" for one in compared)
    return any(one["other"] == name and one["answer"] == "better" for one in compared)


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
    return _NAMES.get(title, spelled(title.partition(", ")[0]))


def _usd(usd: float) -> str:
    return measured_text(usd, None, None, "usd")


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return _joined([*names[:_MOST_NAMED], f"{more} more"] if more > 1 else names, "and")


def _joined(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
