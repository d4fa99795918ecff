"""Why a run became slower: what its phases and sensors say, in the order of how sure they are."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.core.units import bytes_text, duration_text
from foretune.core.vocabulary import TimePhase

Reading = Mapping[str, Mapping[str, Any]]
_MOST_OF_IT = 0.5
_LEAST_THROTTLED = 0.25
_LOWER_CLOCK = 0.93
_LEAST_SWAP_BYTES_PER_S = 1e6
_LEAST_QUOTA_SHARE = 0.05
_LEAST_OTHER_CPUS = 0.5
_SEVERAL_CPUS = 1.3
"""Processors that a run keeps busy from which on it computes with several threads."""


@dataclass(frozen=True)
class Window:
    """A stretch of steps and what sensors reported meanwhile."""

    phases_s: Mapping[str, float]
    """Of a mean step."""
    readings: Sequence[tuple[float, Reading]]
    """(time, what each source reported)."""

    @property
    def step_s(self) -> float:
        return sum(self.phases_s.values())

    def values(self, quantity: str, *prefixes: str) -> list[Any]:
        return [
            told[quantity]
            for _, reading in self.readings
            for source, told in reading.items()
            if source.startswith(prefixes) and quantity in told
        ]

    def rate(self, counter: str) -> float | None:
        """How much a counter of the host grew in a second; None where it was not reported twice."""
        told = [
            (at_s, reading["host"][counter]) for at_s, reading in self.readings if counter in reading.get("host", {})
        ]
        if len(told) < 2 or told[-1][0] <= told[0][0]:  # noqa: PLR2004 - growth has two ends
            return None
        return float(told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0])


@dataclass(frozen=True)
class Cause:
    """A likely cause by name, and the sentence with its numbers and what to do."""

    name: str
    text: str


def likely_cause(before: Window, now: Window) -> Cause:
    """The first that the numbers speak for; where none do, the phase that grew."""
    for look in _LOOKS:
        cause = look(before, now)
        if cause is not None:
            return cause
    grown_s = {name: now.phases_s[name] - before.phases_s.get(name, 0.0) for name in now.phases_s}
    if not grown_s:
        return Cause("unknown", "no sensor shows why")
    name = max(grown_s, key=lambda phase: grown_s[phase])
    was, became = duration_text(before.phases_s.get(name, 0.0)), duration_text(now.phases_s[name])
    return Cause(f"phase {name}", f"most of it in the phase {name!r} ({was} to {became}); no sensor shows why")


def _input_wait(before: Window, now: Window) -> Cause | None:
    was_s, is_s = before.phases_s.get(TimePhase.DATA, 0.0), now.phases_s.get(TimePhase.DATA, 0.0)
    if is_s - was_s < _MOST_OF_IT * (now.step_s - before.step_s):
        return None
    waits = f"each step waits {duration_text(is_s)} for data, before {duration_text(was_s)}"
    return Cause("input wait", f"{waits}. Look at the disk, or raise data.num_workers")


def _throttled(before: Window, now: Window) -> Cause | None:
    told = now.values("throttling", "nvidia:", "amd:")
    if told and sum(map(bool, told)) >= _LEAST_THROTTLED * len(told):
        reasons = ", ".join(dict.fromkeys(reason for reasons in told for reason in reasons))
        return Cause(
            "throttled", f"the device slows itself down ({reasons}){_heat(now)}. Look at cooling and power limit"
        )
    for prefixes, what in ((("nvidia:", "amd:"), "device"), (("host",), "processor")):
        was, is_ = before.values("clock_hz", *prefixes), now.values("clock_hz", *prefixes)
        if was and is_ and statistics.median(is_) < _LOWER_CLOCK * statistics.median(was):
            clocks = f"{statistics.median(was) / 1e6:.0f} to {statistics.median(is_) / 1e6:.0f} MHz"
            return Cause(
                "throttled", f"the {what}'s clock fell from {clocks}{_heat(now)}. Look at cooling and power limit"
            )
    return None


def _heat(now: Window) -> str:
    told = now.values("temperature_c", "nvidia:", "amd:") or now.values("temperature_c", "host")
    return f" at {max(told):.0f} °C" if told else ""


def _swapping(before: Window, now: Window) -> Cause | None:
    was, is_ = before.rate("swapped_bytes"), now.rate("swapped_bytes")
    if is_ is None or is_ < _LEAST_SWAP_BYTES_PER_S or is_ < 2 * (was or 0.0):
        return None
    return Cause(
        "swap",
        f"the host moves {bytes_text(int(is_))} a second to and from swap. Close other programs, or use less memory",
    )


def _quota(before: Window, now: Window) -> Cause | None:
    was, is_ = before.rate("quota_throttled_s"), now.rate("quota_throttled_s")
    if is_ is None or is_ - (was or 0.0) < _LEAST_QUOTA_SHARE:
        return None
    return Cause(
        "processor quota", f"the container's share of processors is used up for {is_:.0%} of the time. Raise it"
    )


def _other_load(before: Window, now: Window) -> Cause | None:
    was, is_ = before.values("other_cpus", "host"), now.values("other_cpus", "host")
    if not was or not is_ or _mean(is_) - _mean(was) < _LEAST_OTHER_CPUS:
        return None
    load = f"other programs keep {_mean(is_):.1f} processors busy, before {_mean(was):.1f}. Look at what else runs here"
    if _mean(now.values("process_cpus", "host") or [0.0]) >= _SEVERAL_CPUS:
        load += ", or lower parallel.threads: threads that share a processor wait for one another"
    return Cause("other load", load)


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


_LOOKS: tuple[Callable[[Window, Window], Cause | None], ...] = (_input_wait, _throttled, _swapping, _quota, _other_load)
