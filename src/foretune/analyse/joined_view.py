"""Studies of the same configurations in one table: quality at equal time beside speed at equal steps, and cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.analyse.study_cells import (
    COST,
    INFERENCE_SPEED,
    ITERATION_SPEED,
    PEAK_MEMORY,
    RUN_TIME,
    SAMPLES_COST,
    TRAINING_SPEED,
)
from foretune.core.units import measured_text

_AT_EQUAL_STEPS = (ITERATION_SPEED, TRAINING_SPEED, INFERENCE_SPEED, PEAK_MEMORY, RUN_TIME, SAMPLES_COST)
_PROTOCOLS = ("equal-time", "equal-steps")

Band = tuple[float, float | None, float | None]
"""A number with the ends of its interval, which may be absent."""


@dataclass(frozen=True, kw_only=True)
class JoinedQuantity:
    """One thing that was measured, in one of the protocols."""

    protocol: str
    title: str
    higher_is_better: bool | None

    @property
    def heading(self) -> str:
        if self.protocol == "equal-time":
            return f"{self.title} (equal time)"
        return f"{self.title} (equal steps)" if self.title == RUN_TIME else self.title


@dataclass(frozen=True, kw_only=True)
class JoinedRow:
    """One configuration in one setting."""

    configuration: str
    setting: str
    machine: str
    """In words, or the device of a forecast."""
    usd_per_hour: float | None
    """The price of all its devices."""
    values: Mapping[JoinedQuantity, Band]
    forecast_for: str | None = None
    """The model of a forecast; None where it was measured."""


@dataclass(frozen=True, kw_only=True)
class JoinedView:
    """All configurations with everything that was measured of them."""

    quantities: tuple[JoinedQuantity, ...]
    rows: tuple[JoinedRow, ...]

    @property
    def is_joined(self) -> bool:
        """True if both rankings are present: quality at equal time and speed at equal steps."""
        return len({column.protocol for column in self.quantities}) > 1

    @property
    def title(self) -> str:
        if self.is_joined:
            return "Quality at equal time beside speed at equal steps"
        return "Quality at equal time" if self.quantities[0].protocol == "equal-time" else "Speed at equal steps"

    def table(self) -> list[list[str]]:
        """The head, then the rows as text: a column for each configuration, of which there are few."""
        has_settings = len({row.setting for row in self.rows if row.forecast_for is None}) > 1
        lines = [
            ["quantity", *(_heading(row, has_settings=has_settings) for row in self.rows)],
            ["machine", *(row.machine for row in self.rows)],
        ]
        if any(row.usd_per_hour is not None for row in self.rows):
            prices = ("–" if row.usd_per_hour is None else f"{row.usd_per_hour:.3g}" for row in self.rows)
            lines.append(["price, $/h", *prices])
        for one in self.quantities:
            texts = (measured_text(*row.values[one], "") if one in row.values else "–" for row in self.rows)
            lines.append([one.heading, *texts])
        return lines


def _heading(row: JoinedRow, *, has_settings: bool) -> str:
    name = f"{row.configuration}, {row.setting}" if has_settings else row.configuration
    return name if row.forecast_for is None else f"forecast for {row.forecast_for}: {row.configuration}"


def joined_views(studies: Sequence[Mapping[str, Any]]) -> list[JoinedView]:
    """A table for each set of configurations that studies at equal time or equal steps have in common."""
    groups: list[list[Mapping[str, Any]]] = []
    for study in studies:
        for group in groups:
            # The same question again is a table of its own.
            if _places(group[0]) == _places(study) and all(one["protocol"] != study["protocol"] for one in group):
                group.append(study)
                break
        else:
            groups.append([study])
    return [view for group in groups if (view := joined_view(group)) is not None]


def _places(study: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(row["configuration"], row["setting"]) for row in study["rows"]}


def joined_view(
    studies: Sequence[Mapping[str, Any]], forecasts: Sequence[Mapping[str, Any]] = (), model: str = ""
) -> JoinedView | None:
    """Everything that was measured of each configuration, and what is forecast for `model`; None where nothing was."""
    ordered = sorted(
        (one for one in studies if one["protocol"] in _PROTOCOLS), key=lambda one: _PROTOCOLS.index(one["protocol"])
    )
    columns = {column: study for study in ordered for column in _columns(study)}
    if not columns:
        return None
    places = dict.fromkeys((row["configuration"], row["setting"]) for study in ordered for row in study["rows"])
    rows = [_measured(columns, configuration, setting) for configuration, setting in places]
    # Several devices are there for their speed.
    shown = [row for row in forecasts if row["num_devices"] == 1 or TRAINING_SPEED in row["values"]]
    planned = [_forecast(tuple(columns), row, model) for row in shown]
    return JoinedView(quantities=tuple(columns), rows=(*rows, *(row for row in planned if row.values)))


def _columns(study: Mapping[str, Any]) -> Iterator[JoinedQuantity]:
    """Qualities at equal time, with what that time costs; speeds, memory, time and $/1,000 samples at equal steps."""
    better = {axis["title"]: axis["higher_is_better"] for axis in study["axes"]}
    if study["protocol"] == "equal-time":
        titles = [title for title, higher in better.items() if higher is not None or title == COST]
    else:
        titles = [title for title in _AT_EQUAL_STEPS if title in better]
    for title in titles:
        yield JoinedQuantity(protocol=study["protocol"], title=title, higher_is_better=better[title])


def _measured(columns: Mapping[JoinedQuantity, Mapping[str, Any]], configuration: str, setting: str) -> JoinedRow:
    values: dict[JoinedQuantity, Band] = {}
    machines: dict[str, None] = {}
    prices: list[float] = []
    for column, study in columns.items():
        for row in study["rows"]:
            if (row["configuration"], row["setting"]) != (configuration, setting):
                continue
            machines |= dict.fromkeys(filter(None, [row["machine"]]))
            prices += [price for price in [row["usd_per_hour"]] if price is not None]
            if column.title in row["values"]:
                number = row["values"][column.title]
                values[column] = (number["value"], number["low"], number["high"])
    return JoinedRow(
        configuration=configuration,
        setting=setting,
        machine="; ".join(machines),
        usd_per_hour=prices[0] if prices else None,
        values=values,
    )


def _forecast(columns: Sequence[JoinedQuantity], row: Mapping[str, Any], model: str) -> JoinedRow:
    """A forecast has speeds, memory and $/1,000 samples; its run is another job than the measured steps."""
    values = {
        column: tuple(row["values"][column.title])
        for column in columns
        if column.protocol == "equal-steps" and column.title != RUN_TIME and column.title in row["values"]
    }
    num = row["num_devices"]
    return JoinedRow(
        configuration=row["configuration"],
        setting=row["setting"],
        machine=f"{num} x {row['device']}" if num > 1 else row["device"],
        usd_per_hour=row["usd_per_hour"],
        values=values,
        forecast_for=model,
    )
