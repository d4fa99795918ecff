"""Efficiency on several devices: speed on n devices / (n x speed on one), at the same batch on each device."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.analyse.study_cells import SAMPLE_RATE, Number


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The efficiency of one configuration on a number of devices."""

    device: str | None
    """The kind of device of a forecast; None where it was measured."""
    configuration: str
    num_devices: int
    value: float
    low: float | None = None
    high: float | None = None


def scaling(study: Mapping[str, Any], forecasts: Sequence[Mapping[str, Any]]) -> list[ScalingPoint]:
    """Measured and forecast efficiencies; empty where nothing was run or planned on both one and several devices.

    A forecast has no band here: what makes the speed uncertain on one device does so on several.
    """
    found = list(_measured(study))
    for row, alone in _with_one_device(forecasts, lambda row: (row["device"], row["configuration"])):
        rate, rate_alone = (one["values"][SAMPLE_RATE][0] for one in (row, alone))
        found.append(
            ScalingPoint(
                device=row["device"],
                configuration=row["configuration"],
                num_devices=row["num_devices"],
                value=rate / (row["num_devices"] * rate_alone),
            )
        )
    return found


def _measured(study: Mapping[str, Any]) -> Iterator[ScalingPoint]:
    for row, alone in _with_one_device(study["rows"], lambda row: row["configuration"]):
        rates, rates_alone = (one["values"][SAMPLE_RATE]["by_seed"] for one in (row, alone))
        shares = {
            int(seed): rates[seed] / (row["num_devices"] * rates_alone[seed]) for seed in rates.keys() & rates_alone
        }
        number = Number.of(shares)
        if number is not None:
            is_alone = row["num_devices"] == 1
            yield ScalingPoint(
                device=None,
                configuration=row["configuration"],
                num_devices=row["num_devices"],
                value=number.value,
                low=None if is_alone else number.low,
                high=None if is_alone else number.high,
            )


def _with_one_device(
    rows: Sequence[Mapping[str, Any]], kind: Any
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each row with that of the same kind on one device.

    Kinds that were on one device only are left out, and kinds with several rows there.
    """
    timed = [row for row in rows if row.get("num_devices") and SAMPLE_RATE in row["values"]]
    single = [row for row in timed if row["num_devices"] == 1]
    counts = Counter(map(kind, single))
    alone = {kind(row): row for row in single if counts[kind(row)] == 1}
    several = {kind(row) for row in timed if row["num_devices"] > 1}
    for row in timed:
        if kind(row) in alone and kind(row) in several:
            yield row, alone[kind(row)]


def scaling_sentences(points: Sequence[ScalingPoint], order: Sequence[str]) -> Iterator[str]:
    """For the last configuration, such as the largest batch: the efficiency by number of devices."""
    for device in dict.fromkeys(point.device for point in points):
        of_device = [point for point in points if point.device == device and point.num_devices > 1]
        last = max(of_device, key=lambda point: order.index(point.configuration)).configuration
        shown = sorted((p for p in of_device if p.configuration == last), key=lambda point: point.num_devices)
        parts = ", ".join(f"{_percent(point)} on {point.num_devices}" for point in shown)
        where = "here" if device is None else f"forecast for {device}"
        yield f"Efficiency by number of devices, {last}, {where}: {parts}."


def _percent(point: ScalingPoint) -> str:
    interval = "" if point.low is None or point.high is None else f" ({point.low:.0%} to {point.high:.0%})"
    return f"{point.value:.0%}{interval}".replace("%", " %")
