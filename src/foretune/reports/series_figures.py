"""The figures of a series: each a picture and a table of the same numbers, measured beside forecast."""

import csv
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.analyse.joined_view import JoinedView
from foretune.analyse.study_cells import COST, RUN_TIME, SAMPLES_COST, spelled
from foretune.analyse.trace_digest import TraceDigest
from foretune.choices.study_series import SeriesFigure
from foretune.record.atomic import write_text
from foretune.reports.curve_plots import draw_curves
from foretune.reports.figures import COLOURS, GRID, INK, name_below, new_figure, plain, save_figure
from foretune.reports.profile_plot import draw_operators
from foretune.reports.run_csv import safe
from foretune.reports.series_numbers import (
    FigureTable,
    Panel,
    PartResults,
    Point,
    best_batch_panels,
    best_batch_table,
    curves_numbers,
    curves_table,
    efficiency_panels,
    efficiency_table,
    numbers_of,
    operators_numbers,
    operators_table,
    panels_of,
    stages_panel,
    table_of,
)

_PANEL_INCHES = (4.8, 3.5)
_WIDTH = 0.8
_LONGEST_NAME = 14
_FEWEST_ON_A_LINE = 3
_DEVICES = "devices"
"""What differs in figures of efficiency, which are lines even from one device to two."""
_MOST_ON_A_LINEAR_AXIS = 8
"""More times the smallest number than this needs an axis with a logarithmic scale."""
_ACROSS = (("equal-time", COST), ("equal-steps", SAMPLES_COST), ("equal-steps", RUN_TIME))
"""What quality is drawn against, the first that was measured."""


@dataclass(frozen=True, kw_only=True)
class DrawnFigure:
    """A figure on the disk."""

    name: str
    title: str
    part: str
    files: tuple[Path, ...]
    """SVG and PNG of the picture, CSV of the numbers."""
    table: FigureTable


def write_figure(name: str, figure: SeriesFigure, part: PartResults, folder: Path) -> DrawnFigure:
    """Draws a figure into <name>.svg and <name>.png, and writes its numbers to <name>.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    what = "the figures of a study"
    if figure.kind == "operators":
        paths = save_figure(lambda: _operators(part.digests, figure.title), folder, name, what)
        table, numbers = operators_table(part.digests), operators_numbers(part.digests)
    elif figure.kind == "stages":
        panels = [stages_panel(part.digests)]
        paths = save_figure(lambda: _drawn(panels, figure.title), folder, name, what)
        table, numbers = table_of(panels), numbers_of(panels)
    elif figure.kind == "curves":
        paths = save_figure(lambda: draw_curves(part.study, figure.title), folder, name, what)
        table, numbers = curves_table(part.study), curves_numbers(part.study)
    elif figure.kind == "best batch":
        panels = list(best_batch_panels(part, per_device=figure.per_device))
        paths = save_figure(lambda: _drawn(panels, figure.title), folder, name, what)
        table, numbers = best_batch_table(part, per_device=figure.per_device), numbers_of(panels)
    elif figure.kind == "efficiency":
        panels = efficiency_panels(part)
        counts = {point.configuration: float(point.configuration) for panel in panels for point in panel.points}
        paths = save_figure(lambda: _drawn(panels, figure.title, counts, _DEVICES), folder, name, what)
        table, numbers = efficiency_table(panels), numbers_of(panels)
    else:
        panels = [panel for shown in figure.show for panel in panels_of(shown, part, per_device=figure.per_device)]
        at, varied = part.at, part.study.get("varied")
        paths = save_figure(lambda: _drawn(panels, figure.title, at, varied), folder, name, what)
        table, numbers = table_of(panels), numbers_of(panels)
    file = folder / f"{name}.csv"
    write_text(file, _csv(numbers))
    return DrawnFigure(name=name, title=figure.title, part=figure.part, files=(*paths, file), table=table)


def write_joined(view: JoinedView, folder: Path) -> DrawnFigure:
    """Draws quality at equal time against its cost, or against the time of the same steps where there is no price; the
    file has every number of the table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, title = "quality-and-cost", view.title
    paths = save_figure(lambda: _against_cost(view), folder, name, "the figures of a study")
    head = (
        "configuration",
        "setting",
        "machine",
        "forecast for",
        "price, $/h",
        "protocol",
        "quantity",
        "value",
        "low",
        "high",
    )
    numbers = [
        (
            row.configuration,
            row.setting,
            row.machine,
            row.forecast_for,
            row.usd_per_hour,
            column.protocol,
            column.title,
            *band,
        )
        for row in view.rows
        for column, band in row.values.items()
    ]
    file = folder / f"{name}.csv"
    write_text(file, _csv([head, *numbers]))
    first, *others = (tuple(row) for row in view.table())
    return DrawnFigure(
        name=name,
        title=title,
        part="",
        files=(*paths, file),
        table=FigureTable(head=first, rows=tuple(others), num_text_rows=1),
    )


def _against_cost(view: JoinedView) -> Any:
    """A panel for each quality, a point for each configuration."""
    qualities = [one for one in view.quantities if one.protocol == "equal-time" and one.title != COST]
    across = next(one for wanted in _ACROSS for one in view.quantities if (one.protocol, one.title) == wanted)
    figure, places = new_figure(len(qualities), f"Quality at equal time against {across.title.partition(', ')[0]}")
    for place, quality in zip(places, qualities, strict=False):
        for number, row in enumerate(row for row in view.rows if {quality, across} <= row.values.keys()):
            (x, *x_ends), (y, *y_ends) = row.values[across], row.values[quality]
            reaches = [
                [[math.nan if end is None else abs(end - value)] for end in ends]
                for value, ends in ((x, x_ends), (y, y_ends))
            ]
            named = (
                row.configuration
                if len({one.setting for one in view.rows}) == 1
                else f"{row.configuration}, {row.setting}"
            )
            colour = COLOURS[number % len(COLOURS)]
            place.errorbar(
                [x], [y], xerr=reaches[0], yerr=reaches[1], fmt="o", color=colour, ecolor=INK, capsize=3,
                elinewidth=1, label=named,
            )  # fmt: skip
        place.set_xlabel(across.heading)
        better = "more" if quality.higher_is_better else "less"
        place.set_ylabel(f"{spelled(quality.title)} ({better} is better)")
        place.set_xlim(left=0)
        place.margins(0.15)
        plain(place)
    name_below(figure, places[0])
    return figure


def _drawn(
    panels: Sequence[Panel],
    title: str,
    at: Mapping[str, float] | None = None,
    varied: str | None = None,
) -> Any:
    """Quantities below each other; of each, what was measured on the left and forecasts beside it."""
    from matplotlib.figure import Figure

    by_axis: dict[str, list[Panel]] = {}
    for panel in panels:
        by_axis.setdefault(panel.axis, []).append(panel)
    num_columns, num_rows = max(map(len, by_axis.values())), len(by_axis)
    size = (max(_PANEL_INCHES[0] * num_columns, 6.0), _PANEL_INCHES[1] * num_rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, color=INK, fontsize=11, fontweight="bold")
    drawn = figure.subplots(num_rows, num_columns, squeeze=False)
    named: list[Any] = []
    # One colour for one name in all panels, although a panel may lack some.
    settings = list(dict.fromkeys(point.setting for panel in reversed(panels) for point in panel.points))
    names = list(dict.fromkeys(point.configuration for panel in reversed(panels) for point in panel.points))
    for places, (axis, same) in zip(drawn, by_axis.items(), strict=True):
        for place in places[len(same) :]:
            place.set_visible(False)
        for place, panel in zip(places, same, strict=False):
            place.set_title(panel.title, fontsize=9.5, color=INK, loc="left")
            place.set_ylabel(spelled(axis))
            if not panel.points:
                _say(place, panel.missing or "not measured")
                continue
            num_places = len({at.get(point.configuration) for point in panel.points}) if at else 0
            if at and (num_places >= _FEWEST_ON_A_LINE or varied == _DEVICES):
                _lines(place, panel, at, str(varied), settings)
            else:
                _bars(place, panel, names)
            place.set_ylim(bottom=0)
            place.set_ylim(top=max(place.get_ylim()[1], 1.08 * max(point.value for point in panel.points)))
            plain(place)
            if panel.missing is not None:
                place.set_xlabel(textwrap.shorten(panel.missing, 90), fontsize=8)
            named.append(place)
    legend = max(named, key=lambda place: len(place.get_legend_handles_labels()[1]), default=None)
    if legend is not None and len(legend.get_legend_handles_labels()[1]) > 1:
        name_below(figure, legend)
    return figure


def _say(place: Any, text: str) -> None:
    place.set_axis_off()
    place.text(0.5, 0.5, textwrap.fill(text, 44), ha="center", va="center", fontsize=8.5, color=INK)


def _bars(place: Any, panel: Panel, every: Sequence[str]) -> None:
    """Groups by setting, a bar for each configuration; with one setting the bars have their own names."""
    settings = list(dict.fromkeys(point.setting for point in panel.points))
    names = list(dict.fromkeys(point.configuration for point in panel.points))
    is_grouped = len(settings) > 1
    width = _WIDTH / len(names) if is_grouped else 0.62
    for number, name in enumerate(names):
        points = [point for point in panel.points if point.configuration == name]
        colour = COLOURS[every.index(name) % len(COLOURS)] if is_grouped else COLOURS[0]
        if is_grouped:
            xs = [settings.index(point.setting) + _WIDTH * ((number + 0.5) / len(names) - 0.5) for point in points]
        else:
            xs = [float(number)] * len(points)
        values = [point.value for point in points]
        place.bar(xs, values, width=width * 0.92, color=colour, alpha=0.55, label=name if is_grouped else None)
        for x, point in zip(xs, points, strict=True):
            top = max(point.value, point.high or 0.0, *point.dots)
            place.annotate(
                _short_number(point.value),
                (x, top),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=INK,
            )
        _ends(place, xs, points)
    ticks = settings if is_grouped else names
    is_long = max(map(len, ticks)) > _LONGEST_NAME and len(ticks) >= _FEWEST_ON_A_LINE
    place.set_xticks(range(len(ticks)), ticks, fontsize=8.5, **({"rotation": 25, "ha": "right"} if is_long else {}))
    place.set_xlim(-0.6, len(ticks) - 0.4)
    place.margins(y=0.18)


def _lines(place: Any, panel: Panel, at: Mapping[str, float], varied: str, every: Sequence[str]) -> None:
    """A line over the numbers in which configurations differ, for each setting."""
    for setting in dict.fromkeys(point.setting for point in panel.points):
        points = sorted((p for p in panel.points if p.setting == setting), key=lambda point: at[point.configuration])
        xs = [at[point.configuration] for point in points]
        colour = COLOURS[every.index(setting) % len(COLOURS)]
        place.plot(
            xs, [point.value for point in points], "o-", color=colour, linewidth=1.4, markersize=4, label=setting
        )
        _ends(place, xs, points)
    ticks = sorted({at[point.configuration] for point in panel.points})
    if all(tick > 0 for tick in ticks) and ticks[-1] >= _MOST_ON_A_LINEAR_AXIS * ticks[0]:
        place.set_xscale("log", base=2)
    place.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    place.set_xlabel(varied)


def _ends(place: Any, xs: Sequence[float], points: Sequence[Point]) -> None:
    """Intervals, and a dot for each run."""
    reaches = [
        [math.nan if end is None else abs(end - point.value) for point, end in zip(points, ends, strict=True)]
        for ends in ([point.low for point in points], [point.high for point in points])
    ]
    place.errorbar(xs, [point.value for point in points], yerr=reaches, fmt="none", ecolor=INK, capsize=3, elinewidth=1)
    dots = [(x, dot) for x, point in zip(xs, points, strict=True) for dot in point.dots]
    place.scatter([x for x, _ in dots], [dot for _, dot in dots], s=9, color=INK, zorder=3)


def _short_number(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text else text


def _operators(digests: Mapping[str, TraceDigest], title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 4.0 * len(digests) + 0.5), layout="constrained")
    figure.suptitle(title, color=INK, fontsize=11, fontweight="bold")
    places = figure.subplots(len(digests), 1, squeeze=False)
    for (place,), (name, digest) in zip(places, digests.items(), strict=True):
        draw_operators(place, digest)
        place.set_title(name, loc="left", fontsize=9.5, color=INK)
        place.spines[["top", "right"]].set_visible(False)
        place.set_axisbelow(True)
        place.grid(axis="x", color=GRID)
    return figure


def _csv(rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([safe(cell) for cell in row] for row in rows)
    return out.getvalue()
