"""Puts what the studies of a series found into a few sentences each: measurements with intervals, then forecasts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foretune.analyse.device_scaling import scaling, scaling_sentences
from foretune.analyse.inference_study import IMAGE_STEPS
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.study_cells import (
    COST,
    INFERENCE_SPEED,
    PEAK_MEMORY,
    SAMPLE_RATE,
    SAMPLES_COST,
    STEPS_MADE,
    spelled,
)
from foretune.analyse.study_comparing import BREAK_EVEN, NOT_COMPARED
from foretune.analyse.trace_digest import TraceDigest
from foretune.choices.study_series import SeriesPublished
from foretune.core.units import MIB, bytes_text, measured_text

_HUNDRED = 100
_COSTS = (COST, SAMPLES_COST)
_MOST_NAMED = 4
"""Configurations that a sentence names one by one; of more, the best."""


def answers_of(
    study: Mapping[str, Any],
    forecasts: Sequence[Mapping[str, Any]],
    model: str,
    digests: Mapping[str, TraceDigest] | None = None,
    published: SeriesPublished | None = None,
) -> list[str]:
    """Sentences about what was measured, in the order of the study's settings; then the forecast's.

    Of profiled configurations they say where the time of a step goes.
    """
    sentences = [_profiled(name, digest) for name, digest in (digests or {}).items()]
    if not digests:
        sentences += _all_measured(study)
    findings = [finding["sentence"] for finding in study["findings"]]
    if study["protocol"] != "convergence":
        # What the comparisons above do not say.
        findings = [text for text in findings if BREAK_EVEN in text or NOT_COMPARED in text]
    sentences += findings
    order = list(dict.fromkeys(row["configuration"] for row in (*study["rows"], *forecasts)))
    sentences += scaling_sentences(scaling(study, forecasts), order)
    sentences += _forecast(forecasts, model)
    return sentences if published is None else [*sentences, *_against(published, forecasts)]


def _against(published: SeriesPublished, forecasts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The forecast of each device beside what was published for it."""
    rows = {
        row["configuration"]: row
        for row in forecasts
        if row["device"] == published.device and published.setting in (None, row["setting"])
    }
    compared = []
    for name, rate in published.samples_per_s_per_device.items():
        if SAMPLE_RATE in rows.get(name, {"values": {}})["values"]:
            planned = rows[name]["values"][SAMPLE_RATE][0] / rows[name]["num_devices"]
            off = f"{planned / rate - 1:+.0%}"
            numbers = f"forecast {plain_number(planned)}, published by {published.by} {plain_number(rate)}"
            compared.append(f"{name}: {numbers} ({off})".replace("%", " %"))
    if compared:
        yield f"Samples/s of each {published.device}. {'; '.join(compared)}."


def _profiled(name: str, digest: TraceDigest) -> str:
    phases = sorted(digest.phases_s.items(), key=lambda item: -item[1])[:_MOST_NAMED]
    shares = ", ".join(f"{phase} {seconds / digest.wall_s:.0%}" for phase, seconds in phases)
    longest = digest.longest[0]
    operator = longest.name.removeprefix("aten::")
    return f"{name}: of a step, {shares}; the longest operator is {operator} with {longest.share:.0%}."


def _all_measured(study: Mapping[str, Any]) -> Iterator[str]:
    compared = [one for one in study["comparisons"] if one["title"] != STEPS_MADE]
    settings = list(dict.fromkeys(row["setting"] for row in study["rows"]))
    for setting in settings:
        place = f"{setting}: " if len(settings) > 1 else ""
        for title in dict.fromkeys(one["title"] for one in compared):
            of_title = [one for one in compared if (one["setting"], one["title"]) == (setting, title)]
            if of_title:
                text = _measured(of_title, title, study)
                yield f"{place}{text}." if place else f"{text[:1].upper()}{text[1:]}."
    few = min((one["num_pairs"] for one in compared), default=FEWEST_RUNS)
    if few < FEWEST_RUNS:
        repeats = "repeat" if study["protocol"] == "inference" else "seed"
        yield f"Measured with {f'one {repeats}' if few == 1 else f'{few} {repeats}s'}: no claim."


def _measured(compared: Sequence[Mapping[str, Any]], title: str, study: Mapping[str, Any]) -> str:
    """Compares each configuration with the first one; of many, only the best."""
    first = compared[0]["first"]
    if len(compared) > _MOST_NAMED:
        higher = any(axis["title"] == title and axis["higher_is_better"] is not False for axis in study["axes"])
        compared = [max(compared, key=lambda one: one["value"] if higher else -one["value"])]
    if compared[0]["kind"] == "ratio":
        verb = "denoises" if title in (INFERENCE_SPEED, IMAGE_STEPS) else "trains"
        said = []
        for one in compared:
            ratio, _, interval = measured_text(one["value"], one["low"], one["high"], "").partition(" (")
            said.append(
                f"{one['other']} {verb} {ratio} times as fast{f' ({interval}' if interval else ''}{_doubt(one)}"
            )
        return f"compared with {first}, {', '.join(said)}"
    setting = compared[0]["setting"]
    values = {
        row["configuration"]: row["values"][title]["value"]
        for row in study["rows"]
        if row["setting"] == setting and title in row["values"]
    }
    others = ", ".join(f"{one['other']} {_value(values[one['other']], title)}{_doubt(one)}" for one in compared)
    name = title.rpartition(", ")[0] if title in (PEAK_MEMORY, *_COSTS) else spelled(title)
    return f"{name}: {first} {_value(values[first], title)}, {others}"


def _doubt(one: Mapping[str, Any]) -> str:
    found = {"no difference shown": "no difference shown", "inconclusive": "not decided"}.get(one["answer"])
    return "" if found is None else f" [{found}]"


def _value(value: float, title: str) -> str:
    if title in _COSTS:
        return measured_text(value, None, None, "usd")
    return bytes_text(round(value * MIB)) if title == PEAK_MEMORY else f"{value:.4g}"


def _forecast(forecasts: Sequence[Mapping[str, Any]], model: str) -> Iterator[str]:
    """Names the fastest configuration that fits, on each device and in each setting, and those that do not fit."""
    for device in dict.fromkeys(row["device"] for row in forecasts):
        rows = [row for row in forecasts if row["device"] == device]
        where = devices_text(device, rows)
        for setting in dict.fromkeys(row["setting"] for row in rows):
            timed = [row for row in rows if row["setting"] == setting and SAMPLE_RATE in row["values"]]
            if not timed[1:]:
                continue
            first, best = timed[0], max(timed, key=lambda row: row["values"][SAMPLE_RATE][0])
            place = f", {setting}" if len({row["setting"] for row in rows}) > 1 else ""
            if best is first:
                fastest = f"{first['configuration']} is fastest with {rate_words(first)}"
                yield f"Forecast for {model} on {where}{place}: {fastest}."
            else:
                times = best["values"][SAMPLE_RATE][0] / first["values"][SAMPLE_RATE][0]
                yield (
                    f"Forecast for {model} on {where}{place}: {best['configuration']} is fastest with "
                    f"{rate_words(best)}, {plain_number(times)} times as fast as {first['configuration']}."
                )
        if text := unfit_text(rows, where):
            yield f"Forecast for {model}: {text}."


def unfit_text(rows: Sequence[Mapping[str, Any]], where: str) -> str | None:
    """Which of the forecasts for a device do not fit on it; None if all do."""
    names = [_name(row, rows) for row in rows if row["verdict"] == "does not fit"]
    if not names:
        return None
    verb = "does not fit" if len(names) == 1 else "do not fit"
    return f"{' and '.join(names)} {verb} on {where}"


def rate_words(row: Mapping[str, Any]) -> str:
    """The samples/s of a forecast; those of each device where there are several."""
    rate, num = row["values"][SAMPLE_RATE][0], row["num_devices"]
    return f"{plain_number(rate)} samples/s" + (
        f" ({plain_number(rate / num)} on each of {num} devices)" if num > 1 else ""
    )


def devices_text(device: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The devices that forecasts are for; how many of them, where all are for the same number."""
    numbers = {row["num_devices"] for row in rows}
    return f"{max(numbers)} x {device}" if len(numbers) == 1 and max(numbers) > 1 else device


def _name(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    has_settings = len({one["setting"] for one in rows}) > 1
    return f"{row['configuration']} ({row['setting']})" if has_settings else str(row["configuration"])


def plain_number(value: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{value:,.0f}" if value >= _HUNDRED else f"{value:.3g}"
