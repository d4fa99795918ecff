"""The numbers of a series' figures: what was measured beside what is forecast, as points, tables and rows of a file."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.analyse.device_scaling import scaling
from foretune.analyse.series_answers import devices_text
from foretune.analyse.study_cells import SAMPLE_RATE, TRAINING_SPEED, spelled
from foretune.analyse.trace_digest import TraceDigest
from foretune.core.units import measured_text

Band = tuple[float, float | None, float | None]
"""A number with the ends of its interval."""


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
    num_text_rows: int = 0
    """The first rows hold words, whatever is below them."""


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


_OVER_ALL_DEVICES = (SAMPLE_RATE, TRAINING_SPEED)


def panels_of(shown: str, part: PartResults, *, per_device: bool = False) -> Iterator[Panel]:
    """What was measured, then what is forecast for each device. `per_device`: samples/s of each of several devices."""
    titles = [title for row in part.study["rows"] for title in row["values"] if title.startswith(shown)]
    if not titles:
        yield Panel(title="measured here", axis=shown, points=(), missing="nothing was measured")
        return
    title = titles[0]
    is_shared = per_device and title in _OVER_ALL_DEVICES
    axis = f"{title} of each device" if is_shared else title
    yield Panel(title="measured here", axis=axis, points=tuple(_measured(part.study, title, is_shared=is_shared)))
    for device in dict.fromkeys(row["device"] for row in part.forecasts):
        rows = [row for row in part.forecasts if row["device"] == device]
        points = tuple(
            _point(row, tuple(row["values"][title]), row["num_devices"] if is_shared else 1)
            for row in rows
            if title in row["values"]
        )
        if points or any(row["missing"] for row in rows):
            reasons: dict[str, list[str]] = {}
            for row in rows:
                if row["missing"]:
                    reasons.setdefault(row["missing"], []).append(row["configuration"])
            missing = "; ".join(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items())
            where = devices_text(device, rows)
            yield Panel(title=f"forecast: {part.model} on {where}", axis=axis, points=points, missing=missing or None)


def _measured(study: Mapping[str, Any], title: str, *, is_shared: bool) -> Iterator[Point]:
    for row in study["rows"]:
        if title in row["values"]:
            number = row["values"][title]
            num = (row.get("num_devices") or 1) if is_shared else 1
            yield _point(row, (number["value"], number["low"], number["high"]), num, tuple(number["by_seed"].values()))


def _point(row: Mapping[str, Any], band: Band, num_devices: int, dots: tuple[float, ...] = ()) -> Point:
    """A number of a row, divided by the number of devices."""
    value, low, high = band
    return Point(
        configuration=row["configuration"],
        setting=row["setting"],
        value=value / num_devices,
        low=None if low is None else low / num_devices,
        high=None if high is None else high / num_devices,
        dots=tuple(dot / num_devices for dot in dots),
    )


def stages_panel(digests: Mapping[str, TraceDigest]) -> Panel:
    points = [
        Point(configuration=name, setting=stage, value=1000 * seconds / digest.num_steps, low=None, high=None)
        for name, digest in digests.items()
        for stage, seconds in digest.phases_s.items()
        if seconds > 0
    ]
    return Panel(title="measured here, under the profiler", axis="ms a step", points=tuple(points))


def efficiency_panels(part: PartResults) -> list[Panel]:
    """A line for each configuration, such as a batch size, over the number of devices."""
    found = scaling(part.study, part.forecasts)
    panels = []
    for device in dict.fromkeys(point.device for point in found):
        points = tuple(
            Point(
                configuration=f"{point.num_devices}",
                setting=point.configuration,
                value=100 * point.value,
                low=None if point.low is None else 100 * point.low,
                high=None if point.high is None else 100 * point.high,
            )
            for point in found
            if point.device == device
        )
        title = "measured here" if device is None else f"forecast: {part.model} on {device}"
        panels.append(Panel(title=title, axis="efficiency, %", points=points))
    return panels or [Panel(title="measured here", axis="efficiency, %", points=(), missing="measured on one device")]


def efficiency_table(panels: Sequence[Panel]) -> FigureTable:
    """A row for each configuration and number of devices."""
    names = list(dict.fromkeys(point.setting for panel in reversed(panels) for point in panel.points))
    counts = sorted({int(point.configuration) for panel in panels for point in panel.points})
    rows = []
    for name, count in itertools.product(names, counts):
        found = [
            next((p for p in panel.points if (p.setting, p.configuration) == (name, str(count))), None)
            for panel in panels
        ]
        if any(found):
            rows.append((name, str(count), *(_percent(point) for point in found)))
    return FigureTable(head=("configuration", "devices", *(f"{p.axis}, {p.title}" for p in panels)), rows=tuple(rows))


def _percent(point: Point | None) -> str:
    if point is None:
        return "–"
    interval = "" if point.low is None or point.high is None else f" ({point.low:.0f} to {point.high:.0f})"
    return f"{point.value:.0f}{interval}"


def best_batch_panels(part: PartResults, *, per_device: bool = False) -> Iterator[Panel]:
    for panel in panels_of(SAMPLE_RATE, part, per_device=per_device):
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


def best_batch_table(part: PartResults, *, per_device: bool = False) -> FigureTable:
    """A row for each setting, such as a precision: speed at the smallest and at the best micro batch, with its size."""
    panels = list(panels_of(SAMPLE_RATE, part, per_device=per_device))
    found = [(panel, *entry) for panel in panels for entry in _best_batches(panel, part.at)]
    rows = [
        (
            panel.title,
            one.setting,
            measured_text(one.value, one.low, one.high, ""),
            f"{measured_text(best.value, best.low, best.high, '')}, batch {size:g}",
        )
        for panel, one, best, size in found
    ]
    sizes = {part.at[one.configuration] for _, one, _, _ in found}
    smallest = f"micro batch {sizes.pop():g}" if len(sizes) == 1 else "the smallest micro batch"
    head = ("", "setting", f"{panels[0].axis} at {smallest}", f"{panels[0].axis} at the best micro batch (which)")
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
    names = [spelled(panel.axis) for panel in panels]
    heads = [name if num_devices == 1 else f"{name}, {panel.title}" for name, panel in zip(names, panels, strict=True)]
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
