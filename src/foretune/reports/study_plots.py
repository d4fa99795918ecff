"""The answer of a study as a picture: one panel for each thing that was measured, with intervals where there are."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretune.core.errors import MissingExtra

INK, _BAR, GRID = "#1f2933", "#3b6ea5", "#d5dbe1"
PANEL_INCHES = (4.6, 3.4)
_DPI = 110


def write_study_plots(study: Mapping[str, Any], directory: Path) -> tuple[Path, ...]:
    """Draws a study (as in its study.json) into plot.svg and plot.png; returns their paths."""
    return save_figure(lambda: _figure(study), directory)


def save_figure(draw: Callable[[], Any], directory: Path) -> tuple[Path, ...]:
    """What `draw` makes, as plot.svg and plot.png; returns their paths."""
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


def _figure(study: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    axes = study["axes"]
    height = max(PANEL_INCHES[1], 0.34 * len(study["points"]) + 1.2) if study["is_sideways"] else PANEL_INCHES[1]
    figure = Figure(figsize=(PANEL_INCHES[0] * len(axes), height), layout="constrained")
    figure.suptitle(study["title"], color=INK, fontsize=11, fontweight="bold")
    panels = figure.subplots(1, len(axes), squeeze=False)[0]
    for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
        values = [point["values"][axis["key"]] for point in study["points"]]
        if study["is_sideways"]:
            _lying_bars(panel, study["points"], values, axis["title"], has_names=number == 0)
        elif study["is_line"]:
            _line(panel, study["points"], values, study["setting"], axis["title"])
        else:
            _bars(panel, study["points"], values, study["setting"], axis["title"])
        _plain(panel, is_sideways=study["is_sideways"])
    return figure


def _line(panel: Any, points: Sequence[Any], values: Sequence[Any], setting: str, title: str) -> None:
    known = [(point["x"], value) for point, value in zip(points, values, strict=True) if value["value"] is not None]
    panel.errorbar(
        [x for x, _ in known],
        [value["value"] for _, value in known],
        yerr=_reaches([value for _, value in known]),
        color=_BAR,
        ecolor=INK,
        marker="o",
        markersize=4,
        capsize=3,
        elinewidth=1,
    )
    panel.set_xticks([x for x, _ in known])
    panel.set_xlabel(setting)
    panel.set_ylabel(title)
    panel.set_ylim(bottom=0)


def _bars(panel: Any, points: Sequence[Any], values: Sequence[Any], setting: str, title: str) -> None:
    panel.bar(
        [point["label"] for point in points],
        [value["value"] or 0.0 for value in values],
        yerr=_reaches(values),
        color=_BAR,
        ecolor=INK,
        capsize=4,
        width=0.6,
    )
    for place, value in enumerate(values):
        if value["value"] is None:
            panel.text(place, 0, "not steady", ha="center", va="bottom", color=INK)
    panel.set_xlabel(setting)
    panel.set_ylabel(title)
    panel.set_ylim(bottom=0)


def _lying_bars(panel: Any, points: Sequence[Any], values: Sequence[Any], title: str, *, has_names: bool) -> None:
    places = list(range(len(points)))
    panel.barh(places, [value["value"] or 0.0 for value in values], color=_BAR, height=0.65)
    panel.set_yticks(places, [point["label"] if has_names else "" for point in points])
    panel.invert_yaxis()
    panel.set_xlabel(title)


def _reaches(values: Sequence[Any]) -> list[list[float]]:
    """How far each interval reaches down and up; not a number, which draws nothing, where an end is not known."""

    def reach(value: Mapping[str, float | None], end: str) -> float:
        at, limit = value["value"], value[end]
        is_known = at is not None and value["low"] is not None and value["high"] is not None
        return abs((limit or 0.0) - (at or 0.0)) if is_known else math.nan

    return [[reach(value, end) for value in values] for end in ("low", "high")]


def _plain(panel: Any, *, is_sideways: bool) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x" if is_sideways else "y", color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(colors=INK)
