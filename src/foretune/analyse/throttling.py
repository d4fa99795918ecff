"""A device that slows itself down: its clock falls while its steps get longer, or it says so itself."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LEAST_SAMPLES = 4
_LEAST_SHARE = 0.25
"""Of the samples: a device that says so only for a moment did not lose much."""
_SLOWER = 1.05
_LOWER_CLOCK = 0.9
_NOT_DEVICES = ("host", "rapl")
_USUAL = "power cap"
"""Devices run at their power limit by design. It counts only where the clock and the steps suffer."""


@dataclass(frozen=True)
class Throttling:
    """A device that slows itself down, in a sentence with its numbers."""

    share: float
    """Of the samples that say so, or by which the clock fell."""
    sentence: str


def find_throttling(telemetry: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> Throttling | None:
    """None where nothing was throttled, or no sensor reported."""
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for event in telemetry:
        for source, sample in event.get("sensors", {}).items():
            if not source.startswith(_NOT_DEVICES):
                by_device.setdefault(source, []).append(sample)
    slowed = _slowdown([step["step_s"] for step in steps])
    found = (_of_device(device, samples, slowed) for device, samples in by_device.items())
    return next((one for one in found if one is not None), None)


def _of_device(device: str, samples: Sequence[Mapping[str, Any]], slowed: float) -> Throttling | None:
    if len(samples) < _LEAST_SAMPLES:
        return None
    reasons = [[reason for reason in sample.get("throttled") or () if reason != _USUAL] for sample in samples]
    share = sum(map(bool, reasons)) / len(samples)
    clock = _clock_change([sample["clock_mhz"] for sample in samples if sample.get("clock_mhz")])
    consequences = _words(clock, slowed, samples)
    if share >= _LEAST_SHARE:
        why = " and ".join(dict.fromkeys(reason for of_sample in reasons for reason in of_sample))
        return Throttling(share, f"{device} slows itself down in {share:.0%} of the samples ({why}){consequences}")
    if clock is not None and clock <= _LOWER_CLOCK and slowed >= _SLOWER:
        return Throttling(1 - clock, f"the clock of {device} fell{consequences}")
    return None


def _slowdown(times_s: Sequence[float]) -> float:
    """How many times as long the last third of the steps takes as the fastest third, warm-up apart."""
    times_s = times_s[len(times_s) // 10 :]
    third = len(times_s) // 3
    if third < _LEAST_SAMPLES:
        return 1.0
    thirds = [statistics.median(times_s[place : place + third]) for place in (0, third, len(times_s) - third)]
    return thirds[-1] / min(thirds)


def _clock_change(clocks_mhz: Sequence[float]) -> float | None:
    """The clock of the last third of the samples as a share of the highest third."""
    third = len(clocks_mhz) // 3
    if not third:
        return None
    thirds = [statistics.median(clocks_mhz[place : place + third]) for place in (0, third, len(clocks_mhz) - third)]
    return thirds[-1] / max(thirds)


def _words(clock: float | None, slowed: float, samples: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    if clock is not None and clock < 1:
        parts.append(f"its clock is at {clock:.0%} of what it was")
    if slowed >= _SLOWER:
        parts.append(f"steps take {slowed:.2f} times as long")
    temperatures = [sample["temperature_c"] for sample in samples if sample.get("temperature_c") is not None]
    if temperatures:
        parts.append(f"up to {max(temperatures):.0f} °C")
    return f": {', '.join(parts)}" if parts else ""
