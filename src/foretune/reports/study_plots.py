"""The summary of a study as a picture: speeds or qualities of each configuration, or loss curves with bands."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretune.analyse.study_cells import INFERENCE_SPEED, ITERATION_SPEED, PEAK_MEMORY, STEPS_MADE, TRAINING_SPEED
from foretune.reports.curve_plots import draw_curves
from foretune.reports.figures import COLOURS, INK, MOST_PANELS, name_below, new_figure, plain, save_figure

_WIDTH = 0.8
_AT_EQUAL_STEPS = (ITERATION_SPEED, TRAINING_SPEED, INFERENCE_SPEED, PEAK_MEMORY)


def write_study_plots(study: Mapping[str, Any], directory: Path) -> tuple[Path, ...]:
    """Draws a study (as in its study.json) into plot.svg and plot.png; returns their paths."""
    draw = _curves if study["protocol"] == "convergence" else _lines if "varied" in study else _bars
    return save_figure(lambda: draw(study), directory, "plot", "a study")


def _bars(study: Mapping[str, Any]) -> Any:
    """One panel for each thing that was measured; every run is a dot, its mean and interval behind it."""
    axes = _drawn_axes(study)
    settings = list(dict.fromkeys(row["setting"] for row in study["rows"]))
    names = list(dict.fromkeys(row["configuration"] for row in study["rows"]))
    figure, panels = new_figure(len(axes), _title(study))
    for panel, axis in zip(panels, axes, strict=True):
        panel.set_ylabel(axis["title"])
        for place, name in enumerate(names):
            rows = [row for row in study["rows"] if row["configuration"] == name and axis["title"] in row["values"]]
            xs = [settings.index(row["setting"]) + _WIDTH * ((place + 0.5) / len(names) - 0.5) for row in rows]
            numbers = [row["values"][axis["title"]] for row in rows]
            _draw_numbers(panel, xs, numbers, COLOURS[place % len(COLOURS)], name, _WIDTH / len(names) * 0.9)
        panel.set_xticks(range(len(settings)), settings if len(settings) > 1 else [""])
        panel.set_xlim(-0.6, len(settings) - 0.4)
        # Bars begin at zero; differences of a loss are small beside it, so that it is drawn as dots alone.
        if _is_amount(axis["title"]):
            panel.set_ylim(bottom=0)
        plain(panel)
    name_below(figure, panels[0])
    return figure


def _drawn_axes(study: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What can be better or worse; at equal time also the steps that were made; of speeds everything."""
    if study["protocol"] == "speed":
        return list(study["axes"])[:MOST_PANELS]
    if study["protocol"] == "equal-steps":
        found = {axis["title"]: axis for axis in study["axes"]}
        return [found[title] for title in _AT_EQUAL_STEPS if title in found]
    axes = [axis for axis in study["axes"] if axis["higher_is_better"] is not None][:MOST_PANELS]
    beside = [axis for axis in study["axes"] if axis["title"] == STEPS_MADE]
    return [*axes[: MOST_PANELS - len(beside)], *beside]


def _lines(study: Mapping[str, Any]) -> Any:
    """Configurations that differ in one number: a line against it for each setting, every run a dot."""
    axes = _drawn_axes(study)
    settings = list(dict.fromkeys(row["setting"] for row in study["rows"]))
    figure, panels = new_figure(len(axes), _title(study))
    for panel, axis in zip(panels, axes, strict=True):
        for place, setting in enumerate(settings):
            rows = [row for row in study["rows"] if row["setting"] == setting and axis["title"] in row["values"]]
            rows.sort(key=lambda row: row["at"])
            numbers = [row["values"][axis["title"]] for row in rows]
            xs, colour = [row["at"] for row in rows], COLOURS[place % len(COLOURS)]
            panel.errorbar(
                xs, [number["value"] for number in numbers], yerr=_reaches(numbers), color=colour, ecolor=INK,
                capsize=3, elinewidth=1, linewidth=1.4, label=setting,
            )  # fmt: skip
            _draw_dots(panel, xs, numbers, colour)
        panel.set_xticks(sorted({row["at"] for row in study["rows"]}))
        panel.set_xlabel(study["varied"])
        panel.set_ylabel(axis["title"])
        panel.set_ylim(bottom=0)
        plain(panel)
    if len(settings) > 1:
        name_below(figure, panels[0])
    return figure


def _title(study: Mapping[str, Any]) -> str:
    return f"{study['name']}: {study['held_equal'].partition('. ')[0].rstrip('.')}"


def _is_amount(title: str) -> bool:
    return "loss" not in title


def _draw_numbers(
    panel: Any, xs: Sequence[float], numbers: Sequence[Mapping[str, Any]], colour: str, name: str, width: float
) -> None:
    values = [number["value"] for number in numbers]
    if _is_amount(panel.get_ylabel()) and all(value >= 0 for value in values):
        panel.bar(xs, values, width=width, color=colour, alpha=0.35)
    panel.errorbar(
        xs,
        values,
        yerr=_reaches(numbers),
        fmt="_",
        color=colour,
        ecolor=INK,
        capsize=4,
        elinewidth=1,
        markersize=10,
        label=name,
    )
    _draw_dots(panel, xs, numbers, colour)


def _draw_dots(panel: Any, xs: Sequence[float], numbers: Sequence[Mapping[str, Any]], colour: str) -> None:
    dots = [(x, value) for x, number in zip(xs, numbers, strict=True) for value in number["by_seed"].values()]
    panel.scatter([x for x, _ in dots], [value for _, value in dots], s=12, color=colour, zorder=3)


def _reaches(numbers: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """How far each interval reaches down and up; not a number, which draws nothing, where there is none."""
    return [
        [math.nan if number[end] is None else abs(number[end] - number["value"]) for number in numbers]
        for end in ("low", "high")
    ]


def _curves(study: Mapping[str, Any]) -> Any:
    return draw_curves(study, f"{study['name']}: loss against steps")
