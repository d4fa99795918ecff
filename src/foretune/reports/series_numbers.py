"""The numbers of a series' figures: what was measured beside what is forecast, as points, tables and rows of a file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.analyse.series_answers import devices_text
from foretune.analyse.study_cells import SAMPLE_RATE
from foretune.analyse.trace_digest import TraceDigest
from foretune.core.units import measured_text


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of a figure."""

    configuration: str
    setting: str
    value: float
    low: float | None
    high: float | None
    dots: tuple[float, ...] = ()
    """Of single runs."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One measured or forecast quantity: a part of the picture, and a column of the table."""

    title: str
    axis: str
    """With its unit."""
    points: tuple[Point, ...]
    missing: str | None = None
    """Why a forecast has no points, or lacks some."""


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """The numbers of a figure as text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class PartResults:
    """What the figures of a part are drawn from."""

    study: Mapping[str, Any]
    """Its study.json."""
    forecasts: Sequence[Mapping[str, Any]]
    """Its forecast.json; empty where nothing was planned."""
    digests: Mapping[str, TraceDigest]
    """Of profiled configurations."""
    model: str
    """The model that forecasts are for."""

    @property
    def at(self) -> dict[str, float]:
        """The number in which configurations differ, by their names; empty where they differ in something else."""
        varied = self.study.get("varied")
        if varied is None:
            return {}
        planned = {row["configuration"]: row["changes"].get(varied) for row in self.forecasts}
        measured = {row["configuration"]: row["at"] for row in self.study["rows"]}
        return {name: value for name, value in {**planned, **measured}.items() if value is not None}


def panels_of(shown: str, part: PartResults) -> Iterator[Panel]:
    """What was measured, then what is forecast for each device."""
    titles = [title for row in part.study["rows"] for title in row["values"] if title.startswith(shown)]
    if not titles:
        yield Panel(title="measured here", axis=shown, points=(), missing="nothing was measured")
        return
    title = titles[0]
    yield Panel(title="measured here", axis=title, points=tuple(_measured(part.study, title)))
    for device in dict.fromkeys(row["device"] for row in part.forecasts):
        rows = [row for row in part.forecasts if row["device"] == device]
        points = tuple(
            Point(
                configuration=row["configuration"],
                setting=row["setting"],
                value=row["values"][title][0],
                low=row["values"][title][1],
                high=row["values"][title][2],
            )
            for row in rows
            if title in row["values"]
        )
        if points or any(row["missing"] for row in rows):
            missing = "; ".join(
                dict.fromkeys(f"{row['configuration']}: {row['missing']}" for row in rows if row["missing"])
            )
            where = devices_text(device, rows)
            yield Panel(title=f"forecast: {part.model} on {where}", axis=title, points=points, missing=missing or None)


def _measured(study: Mapping[str, Any], title: str) -> Iterator[Point]:
    for row in study["rows"]:
        if title in row["values"]:
            number = row["values"][title]
            yield Point(
                configuration=row["configuration"],
                setting=row["setting"],
                value=number["value"],
                low=number["low"],
                high=number["high"],
                dots=tuple(number["by_seed"].values()),
            )


def stages_panel(digests: Mapping[str, TraceDigest]) -> Panel:
    points = [
        Point(configuration=name, setting=stage, value=1000 * seconds / digest.num_steps, low=None, high=None)
        for name, digest in digests.items()
        for stage, seconds in digest.phases_s.items()
        if seconds > 0
    ]
    return Panel(title="measured here, under the profiler", axis="ms a step", points=tuple(points))


def best_batch_panels(part: PartResults) -> Iterator[Panel]:
    for panel in panels_of(SAMPLE_RATE, part):
        points = []
        for one, best, size in _best_batches(panel, part.at):
            points += [
                Point(configuration="smallest batch", setting=one.setting, value=one.value, low=one.low, high=one.high),
                Point(
                    configuration="best batch",
                    setting=f"{one.setting}: best is {size:g}",
                    value=best.value,
                    low=best.low,
                    high=best.high,
                ),
            ]
        # One group for each setting, named with its best batch.
        names = {point.setting.partition(":")[0]: point.setting for point in points}
        yield Panel(
            title=panel.title,
            axis=panel.axis,
            points=tuple(
                Point(
                    configuration=point.configuration,
                    setting=names[point.setting.partition(":")[0]],
                    value=point.value,
                    low=point.low,
                    high=point.high,
                )
                for point in points
            ),
            missing=panel.missing,
        )


def _best_batches(panel: Panel, at: Mapping[str, float]) -> Iterator[tuple[Point, Point, float]]:
    """For each setting the smallest batch, the one with the highest rate, and its size."""
    for setting in dict.fromkeys(point.setting for point in panel.points):
        points = [point for point in panel.points if point.setting == setting and point.configuration in at]
        if points:
            best = max(points, key=lambda point: point.value)
            yield min(points, key=lambda point: at[point.configuration]), best, at[best.configuration]


def best_batch_table(part: PartResults) -> FigureTable:
    rows = [
        (
            panel.title,
            one.setting,
            measured_text(one.value, one.low, one.high, ""),
            measured_text(best.value, best.low, best.high, ""),
            f"{size:g}",
        )
        for panel in panels_of(SAMPLE_RATE, part)
        for one, best, size in _best_batches(panel, part.at)
    ]
    head = ("", "setting", "samples/s at the smallest batch", "samples/s at the best batch", "best batch")
    return FigureTable(head=head, rows=tuple(rows))


def operators_table(digests: Mapping[str, TraceDigest]) -> FigureTable:
    rows = [
        (
            name,
            operator.name,
            f"{1000 * operator.seconds / digest.num_steps:.3f} ms",
            f"{operator.share:.1%}",
            f"{operator.num_calls / digest.num_steps:g}",
        )
        for name, digest in digests.items()
        for operator in digest.longest
    ]
    return FigureTable(head=("configuration", "operator", "a step", "share", "calls a step"), rows=tuple(rows))


def curves_table(study: Mapping[str, Any]) -> FigureTable:
    """The last point of each curve."""
    rows = [
        (
            curve["label"],
            curve["kind"],
            str(curve["points"][-1]["step"]),
            measured_text(curve["points"][-1]["value"], curve["points"][-1]["low"], curve["points"][-1]["high"], ""),
        )
        for curve in study["curves"]
        if curve["points"]
    ]
    return FigureTable(head=("configuration", "loss", "last step", "value"), rows=tuple(rows))


def table_of(panels: Sequence[Panel]) -> FigureTable:
    """A row for each configuration and setting, a column for each panel."""
    places = list(dict.fromkeys((point.setting, point.configuration) for panel in panels for point in panel.points))
    has_settings = len({setting for setting, _ in places}) > 1
    num_devices = len({panel.title for panel in panels})
    heads = [panel.axis if num_devices == 1 else f"{panel.axis}, {panel.title}" for panel in panels]
    rows = []
    for setting, configuration in places:
        cells = [setting, configuration] if has_settings else [configuration]
        for panel in panels:
            found = [p for p in panel.points if (p.setting, p.configuration) == (setting, configuration)]
            cells.append(measured_text(found[0].value, found[0].low, found[0].high, "") if found else "–")
        rows.append(tuple(cells))
    return FigureTable(head=(*(["setting"] if has_settings else []), "configuration", *heads), rows=tuple(rows))


def numbers_of(panels: Sequence[Panel]) -> list[Sequence[object]]:
    """A row for each number, with its interval or band."""
    rows = [
        (panel.title, panel.axis, point.setting, point.configuration, point.value, point.low, point.high)
        for panel in panels
        for point in panel.points
    ]
    return [("source", "quantity", "setting", "configuration", "value", "low", "high"), *rows]


def operators_numbers(digests: Mapping[str, TraceDigest]) -> list[Sequence[object]]:
    rows = [
        (
            name,
            operator.name,
            operator.seconds / digest.num_steps,
            operator.share,
            operator.num_calls / digest.num_steps,
        )
        for name, digest in digests.items()
        for operator in digest.longest
    ]
    return [("configuration", "operator", "seconds_per_step", "share", "calls_per_step"), *rows]


def curves_numbers(study: Mapping[str, Any]) -> list[Sequence[object]]:
    rows = [
        (curve["label"], curve["kind"], point["step"], point["value"], point["low"], point["high"])
        for curve in study["curves"]
        for point in curve["points"]
    ]
    return [("configuration", "loss", "step", "value", "low", "high"), *rows]
