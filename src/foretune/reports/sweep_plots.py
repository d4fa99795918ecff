"""A sweep as pictures: for each axis, speed, memory and loss against its values, a line for each combination of the
others.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.choices.sweep import value_label
from foretune.config.sweep_files import axis_word
from foretune.core.units import GIB
from foretune.reports.curve_plots import draw_curves
from foretune.reports.figures import COLOURS, INK, name_below, new_figure, plain, save_figure

if TYPE_CHECKING:
    from foretune.choices.sweep import AxisOption

_EPOCH = "epoch"
_PANELS: Mapping[str, tuple[str, float]] = {
    "speed": ("samples/s", 1),
    _EPOCH: ("time of an epoch, min", 60),
    "memory": ("peak memory, GiB", GIB),
    "quality": ("held-out loss", 1),
    "money": ("price, USD", 1),
}
_MOST_NAMED = 12
_STYLES = ("-", "--", ":")
_ROOM_ABOVE = 1.05
_LARGEST_GAP, _WIDTH_OF_NAME = 0.12, 0.6
"""Between values that stand side by side, and of all of them; names are 1 apart."""
_MARGIN = 0.05
"""Beside the first and the last value, of the width between them."""
_WIDE_RATIO = 20
"""Values that lie farther apart than this are drawn on a logarithmic axis."""


def write_sweep_plots(
    summary: Mapping[str, Any], options: Mapping[str, Sequence["AxisOption"]], directory: Path
) -> tuple[Path, ...]:
    """Draws loss curves and each axis that has several values into plot-*.svg and .png; returns their paths."""
    paths: list[Path] = []
    if summary["curves"]:
        title = f"{summary['name']}: loss against steps"
        paths += save_figure(lambda: draw_curves(summary, title), directory, "plot-loss-curves", "a sweep")
    for axis in options:
        if len(options[axis]) > 1 and any(one["numbers"] for one in summary["combinations"]):
            name = f"plot-{axis_word(axis)}"
            paths += save_figure(lambda axis=axis: _against(summary, axis, options[axis]), directory, name, "a sweep")  # type: ignore[misc]
    return tuple(paths)


def _against(summary: Mapping[str, Any], axis: str, options: Sequence["AxisOption"]) -> Any:
    combinations = [_with_epoch(one) for one in summary["combinations"] if axis in one["labels"]]
    measured = [key for key in _PANELS if any(key in one["numbers"] for one in combinations)]
    figure, panels = new_figure(len(measured), f"{summary['name']}: {axis}")
    places = _places(options)
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for one in combinations:
        others = {other: label for other, label in one["labels"].items() if other != axis}
        lines.setdefault(", ".join(f"{axis_word(key)} {label}" for key, label in others.items()), []).append(one)
    for panel, key in zip(panels, measured, strict=True):
        title, unit = _PANELS[key]
        for number, (name, members) in enumerate(lines.items()):
            aside = 0.0 if _are_numbers(options) else _aside(number, len(lines))
            xs = [places[one["labels"][axis]] + aside for one in members]
            # Between names there is nothing that a line could stand for.
            style = _STYLES[number // len(COLOURS) % len(_STYLES)] if _are_numbers(options) else "none"
            _draw_line(panel, members, key, unit, xs, name, COLOURS[number % len(COLOURS)], style)
        _mark_failures(panel, combinations, axis, places)
        _label_places(panel, options, places, [places[one["labels"][axis]] for one in combinations])
        panel.set_xlabel(axis)
        panel.set_ylabel(title)
        if key != "quality":
            panel.set_ylim(0, panel.get_ylim()[1] * _ROOM_ABOVE)
        plain(panel)
    if 1 < len(lines) <= _MOST_NAMED:
        name_below(figure, panels[0])
    # Over the first panel, where it meets no names of lines.
    panels[0].set_title(_caption(combinations), fontsize=8, color=INK, loc="left")
    return figure


def _with_epoch(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the time of an epoch of each run, where the sweep says how many samples one has."""
    speed = one["numbers"].get("speed")
    if one.get("epoch_s") is None or speed is None:
        return one
    num_samples = one["epoch_s"] / statistics.fmean(1 / value for value in speed["values"])
    epoch = {
        "value": one["epoch_s"],
        # A fast epoch is a short one, and a speed that may be 0 says nothing of how long it can take.
        "low": num_samples / speed["high"] if speed["high"] else None,
        "high": num_samples / speed["low"] if speed["low"] else None,
        "values": [num_samples / value for value in speed["values"]],
    }
    return {**one, "numbers": {**one["numbers"], _EPOCH: epoch}}


def _aside(number: int, num_lines: int) -> float:
    """Values at the same name stand side by side, so that none hides another."""
    return (number - (num_lines - 1) / 2) * min(_LARGEST_GAP, _WIDTH_OF_NAME / num_lines)


def _caption(combinations: Sequence[Mapping[str, Any]]) -> str:
    """What dots, bars and crosses stand for."""
    num_runs = max((len(found["values"]) for one in combinations for found in one["numbers"].values()), default=0)
    parts = ["Dots: runs. Bars: 95 % interval of the mean." if num_runs > 1 else "One run of each combination."]
    if any("done" not in one["outcomes"] for one in combinations):
        parts.append("Crosses: no trial finished, or none was run because it is predicted not to fit.")
    return " ".join(parts)


def _draw_line(
    panel: Any,
    members: Sequence[Mapping[str, Any]],
    key: str,
    unit: float,
    xs: Sequence[float],
    name: str,
    colour: str,
    style: str,
) -> None:
    known = sorted(
        ((x, one["numbers"][key]) for x, one in zip(xs, members, strict=True) if key in one["numbers"]),
        key=lambda pair: pair[0],
    )
    values = [found["value"] / unit for _, found in known]
    # Not a number draws nothing, where there is no interval.
    reaches = [
        [math.nan if found[end] is None else abs(found[end] - found["value"]) / unit for _, found in known]
        for end in ("low", "high")
    ]
    if known:
        panel.errorbar(
            [x for x, _ in known], values, yerr=reaches, color=INK, capsize=3, elinewidth=1, linestyle="none", zorder=2
        )
    panel.plot([x for x, _ in known], values, color=colour, linewidth=1.4, linestyle=style, zorder=1)
    dots = [(x, value / unit) for x, found in known for value in found["values"]]
    panel.scatter([x for x, _ in dots], [value for _, value in dots], s=20, color=colour, zorder=3, label=name)


def _mark_failures(
    panel: Any, combinations: Sequence[Mapping[str, Any]], axis: str, places: Mapping[str, float]
) -> None:
    """A cross at the foot of the panel where no trial has finished."""
    failed = sorted({places[one["labels"][axis]] for one in combinations if "done" not in one["outcomes"]})
    if failed:
        panel.scatter(
            failed, [0.02] * len(failed), marker="x", color="#b3261e", transform=panel.get_xaxis_transform(), zorder=4
        )


def _places(options: Sequence["AxisOption"]) -> dict[str, float]:
    """Where each value stands: numbers as such, others side by side."""
    if _are_numbers(options):
        return {option.label: float(option.value) for option in options}
    return {option.label: float(number) for number, option in enumerate(options)}


def _are_numbers(options: Sequence["AxisOption"]) -> bool:
    return all(isinstance(option.value, int | float) and not isinstance(option.value, bool) for option in options)


def _label_places(
    panel: Any, options: Sequence["AxisOption"], places: Mapping[str, float], used: Sequence[float]
) -> None:
    """`used` are the places of what was tried: of 512 sizes, a frontier tries a few."""
    are_few = len(options) <= _MOST_NAMED
    if not _are_numbers(options):
        panel.set_xlim(-0.5, len(options) - 0.5)
    else:
        low, high = min(used), max(used)
        if low > 0 and high / low > _WIDE_RATIO:
            panel.set_xscale("log")
            margin = (high / low) ** _MARGIN
            panel.set_xlim(low / margin, high * margin)
            panel.xaxis.set_major_formatter(lambda value, _: value_label(value))
            if are_few:
                panel.minorticks_off()
        elif high > low:
            panel.set_xlim(low - _MARGIN * (high - low), high + _MARGIN * (high - low))
    if are_few:
        panel.set_xticks([places[option.label] for option in options], [option.label for option in options])
