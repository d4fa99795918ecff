"""The summary of a study as a picture: speeds or qualities of each configuration, or loss curves with bands."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretune.core.errors import MissingExtra

_INK, _GRID = "#1f2933", "#d5dbe1"
_PANEL_INCHES = (4.6, 3.4)
_DPI = 110
_COLOURS = ("#3b6ea5", "#d9822b", "#4b8b5a", "#a5468b", "#7a6a3f", "#5b5ea6")
_WIDTH = 0.8
_MOST_PANELS = 4


def write_study_plots(study: Mapping[str, Any], directory: Path) -> tuple[Path, ...]:
    """Draws a study (as in its study.json) into plot.svg and plot.png; returns their paths."""
    draw = _curves if study["protocol"] == "convergence" else _lines if "varied" in study else _bars
    return _save_figure(lambda: draw(study), directory)


def _save_figure(draw: Callable[[], Any], directory: Path) -> tuple[Path, ...]:
    """Saves what `draw` makes as plot.svg and plot.png; returns their paths."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra("Drawing a study", "plots") from error
    mpl.use("Agg")
    # Text stays text: smaller files, and a reader can search in them. The same numbers give the same bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "foretune", "font.size": 9})
    figure = draw()
    paths = []
    for suffix, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": _DPI})):
        path = directory / f"plot.{suffix}"
        figure.savefig(path, **options)
        paths.append(path)
    return tuple(paths)


def _figure(num_panels: int, title: str) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    num_columns = num_panels if num_panels < _MOST_PANELS else num_panels // 2
    num_rows = math.ceil(num_panels / num_columns)
    size = (_PANEL_INCHES[0] * num_columns, _PANEL_INCHES[1] * num_rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, color=_INK, fontsize=11, fontweight="bold")
    return figure, list(figure.subplots(num_rows, num_columns, squeeze=False).flat)


def _bars(study: Mapping[str, Any]) -> Any:
    """One panel for each thing that was measured; every run is a dot, its mean and interval behind it."""
    axes = _drawn_axes(study)
    settings = list(dict.fromkeys(row["setting"] for row in study["rows"]))
    names = list(dict.fromkeys(row["configuration"] for row in study["rows"]))
    figure, panels = _figure(len(axes), _title(study))
    for panel, axis in zip(panels, axes, strict=True):
        panel.set_ylabel(axis["title"])
        for place, name in enumerate(names):
            rows = [row for row in study["rows"] if row["configuration"] == name and axis["title"] in row["values"]]
            xs = [settings.index(row["setting"]) + _WIDTH * ((place + 0.5) / len(names) - 0.5) for row in rows]
            numbers = [row["values"][axis["title"]] for row in rows]
            _draw_numbers(panel, xs, numbers, _COLOURS[place % len(_COLOURS)], name, _WIDTH / len(names) * 0.9)
        panel.set_xticks(range(len(settings)), settings if len(settings) > 1 else [""])
        panel.set_xlim(-0.6, len(settings) - 0.4)
        # Bars begin at zero; differences of a loss are small beside it, so that it is drawn as dots alone.
        if _is_amount(axis["title"]):
            panel.set_ylim(bottom=0)
        _plain(panel)
    _name_below(figure, panels[0])
    return figure


def _drawn_axes(study: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What can be better or worse; at equal time also the steps that were made; of speeds everything."""
    if study["protocol"] == "speed":
        return list(study["axes"])[:_MOST_PANELS]
    axes = [axis for axis in study["axes"] if axis["higher_is_better"] is not None][:_MOST_PANELS]
    beside = [axis for axis in study["axes"] if axis["title"] == "steps made"]
    return [*axes[: _MOST_PANELS - len(beside)], *beside]


def _lines(study: Mapping[str, Any]) -> Any:
    """Configurations that differ in one number: a line against it for each setting, every run a dot."""
    axes = _drawn_axes(study)
    settings = list(dict.fromkeys(row["setting"] for row in study["rows"]))
    figure, panels = _figure(len(axes), _title(study))
    for panel, axis in zip(panels, axes, strict=True):
        for place, setting in enumerate(settings):
            rows = [row for row in study["rows"] if row["setting"] == setting and axis["title"] in row["values"]]
            rows.sort(key=lambda row: row["at"])
            numbers = [row["values"][axis["title"]] for row in rows]
            xs, colour = [row["at"] for row in rows], _COLOURS[place % len(_COLOURS)]
            panel.errorbar(
                xs, [number["value"] for number in numbers], yerr=_reaches(numbers), color=colour, ecolor=_INK,
                capsize=3, elinewidth=1, linewidth=1.4, label=setting,
            )  # fmt: skip
            _draw_dots(panel, xs, numbers, colour)
        panel.set_xticks(sorted({row["at"] for row in study["rows"]}))
        panel.set_xlabel(study["varied"])
        panel.set_ylabel(axis["title"])
        panel.set_ylim(bottom=0)
        _plain(panel)
    if len(settings) > 1:
        _name_below(figure, panels[0])
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
        ecolor=_INK,
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
    kinds = list(dict.fromkeys(curve["kind"] for curve in study["curves"]))
    figure, panels = _figure(max(1, len(kinds)), f"{study['name']}: loss against steps, bands over seeds")
    settled = {one["label"]: one["settled_at_step"] for one in study["convergence"]}
    labels = list(dict.fromkeys(curve["label"] for curve in study["curves"]))
    for panel, kind in zip(panels, kinds, strict=False):
        for curve in (one for one in study["curves"] if one["kind"] == kind):
            colour = _COLOURS[labels.index(curve["label"]) % len(_COLOURS)]
            _draw_curve(panel, curve, colour, settled.get(curve["label"]))
        panel.set_xlabel("optimizer steps")
        smoothed = {curve["num_steps_per_point"] for curve in study["curves"] if curve["kind"] == kind}
        width = max(smoothed)
        panel.set_ylabel(f"{kind} loss" + (f", mean of {width} steps" if width > 1 else ""))
        _plain(panel)
    _name_below(figure, panels[0])
    return figure


def _draw_curve(panel: Any, curve: Mapping[str, Any], colour: str, settled_at: int | None) -> None:
    points = curve["points"]
    steps = [point["step"] for point in points]
    panel.plot(steps, [point["value"] for point in points], color=colour, linewidth=1.4, label=curve["label"])
    if all(point["low"] is not None for point in points):
        lows, highs = ([point[end] for point in points] for end in ("low", "high"))
        panel.fill_between(steps, lows, highs, color=colour, alpha=0.18, linewidth=0)
    if settled_at is not None:
        panel.axvline(settled_at, color=colour, linewidth=1, linestyle=":")


def _name_below(figure: Any, panel: Any) -> None:
    """Names of the configurations, where they cover nothing."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 4) or 1, frameon=False, fontsize=8
    )


def _plain(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(colors=_INK)
