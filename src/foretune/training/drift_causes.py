"""Why a run is slower than before, or than planned: what its phases and sensors say, the surest first."""

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
_NEARLY_FULL = 0.9
"""Share of a card beyond which the desktop and other programs may leave no more."""
_FEW_OWED = 0.5
"""Steps that the device owes, below which it has nothing to do until the host hands over the next."""
_MOST_OF_A_STEP = 0.8
_PLANNED_STEP = "step"
_SEVERAL_CPUS = 1.3
"""Processors that a run keeps busy from which on it computes with several threads."""


@dataclass(frozen=True)
class Window:
    """A stretch of steps and what sensors reported meanwhile."""

    phases_s: Mapping[str, float]
    """Of a mean step."""
    readings: Sequence[tuple[float, Reading]]
    """(time, what each source reported)."""
    host_s: float | None = None
    """Of a mean step, until the host has handed it to the device; None where they are one."""
    num_owed: float | None = None
    """Steps that the device had not finished when one had been handed over, in the mean."""
    name: str = "before"
    """What the stretch is called where another is compared with it."""
    reserved_share: float | None = None
    """What the allocator holds over the card's memory; None where a full card is an error, not a slow one."""

    @property
    def step_s(self) -> float:
        return sum(self.phases_s.values())

    def values(self, quantity: str, *prefixes: str) -> list[Any]:
        return [
            reported[quantity]
            for _, reading in self.readings
            for source, reported in reading.items()
            if source.startswith(prefixes) and quantity in reported
        ]

    def rate(self, counter: str) -> float | None:
        """How much a counter of the host grew in a second; None where it was not reported twice."""
        counts = [
            (at_s, reading["host"][counter]) for at_s, reading in self.readings if counter in reading.get("host", {})
        ]
        if len(counts) < 2 or counts[-1][0] <= counts[0][0]:  # noqa: PLR2004 - growth has two ends
            return None
        return float(counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])


@dataclass(frozen=True)
class Cause:
    """A likely cause by name, and the sentence with its numbers and what to do."""

    name: str
    text: str


def planned_window(step_s: float) -> Window:
    """A step as a plan assumes it: nothing waits for data, and nothing else runs."""
    return Window({_PLANNED_STEP: step_s}, [(0.0, {"host": {"other_cpus": 0.0}})], name="planned")


def shown_cause(before: Window, now: Window) -> Cause | None:
    """The first that the numbers speak for."""
    return next((cause for look in _LOOKS if (cause := look(before, now)) is not None), None)


def likely_cause(before: Window, now: Window) -> Cause:
    """The first that the numbers speak for; where none do, the phase that grew."""
    cause = shown_cause(before, now)
    if cause is not None:
        return cause
    grown_s = {name: now.phases_s[name] - before.phases_s.get(name, 0.0) for name in now.phases_s}
    if not grown_s:
        return Cause("unknown", "no sensor shows why")
    name = max(grown_s, key=lambda phase: grown_s[phase])
    was, became = duration_text(before.phases_s.get(name, 0.0)), duration_text(now.phases_s[name])
    return Cause(f"phase {name}", f"most of it in the phase {name!r} ({was} to {became}); no sensor shows why")


def _input_wait(before: Window, now: Window) -> Cause | None:
    waits = _grown(before, now, TimePhase.DATA)
    if waits is None:
        return None
    return Cause("input wait", f"each step waits {waits} for data. Look at the disk, or raise data.num_workers")


def _encoding(before: Window, now: Window) -> Cause | None:
    encodes = _grown(before, now, TimePhase.ENCODE)
    if encodes is None:
        return None
    advice = "Encode once, before the first step: levers.cache_text=true levers.cache_latents=true"
    return Cause("encoding", f"each step encodes for {encodes}. {advice}")


def _grown(before: Window, now: Window, phase: TimePhase) -> str | None:
    """How long a phase takes, where it is most of what steps became longer by."""
    was_s, is_s = before.phases_s.get(phase, 0.0), now.phases_s.get(phase, 0.0)
    if is_s - was_s < _MOST_OF_IT * (now.step_s - before.step_s):
        return None
    return f"{duration_text(is_s)} ({before.name} {duration_text(was_s)})" if was_s else duration_text(is_s)


def _shared_device(before: Window, now: Window) -> Cause | None:
    was, is_ = before.values("num_processes", "nvidia:"), now.values("num_processes", "nvidia:")
    num_before, num = statistics.median(was or [1]), statistics.median(is_ or [1])
    if num <= max(num_before, 1):
        return None
    return Cause("shared device", f"{num:.0f} processes use the device, this run among them. Look at nvidia-smi")


def _throttled(before: Window, now: Window) -> Cause | None:
    by_reading = now.values("throttling", "nvidia:", "amd:")
    if by_reading and sum(map(bool, by_reading)) >= _LEAST_THROTTLED * len(by_reading):
        reasons = ", ".join(dict.fromkeys(reason for reasons in by_reading for reason in reasons))
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
    temperatures_c = now.values("temperature_c", "nvidia:", "amd:") or now.values("temperature_c", "host")
    return f" at {max(temperatures_c):.0f} °C" if temperatures_c else ""


def _paged(before: Window, now: Window) -> Cause | None:
    was, is_ = before.reserved_share or 0.0, now.reserved_share or 0.0
    if is_ < _NEARLY_FULL or was >= _NEARLY_FULL:
        return None
    return Cause(
        "paged to the host",
        f"the allocator holds {is_:.0%} of the card's memory, and on Windows and in WSL the driver then moves memory "
        "to the host instead of failing. Close other programs, or use less memory: foretune plan ... --on here",
    )


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
    num = f"{_mean(is_):.1f} processors busy, {before.name} {_mean(was):.1f}"
    load = f"other programs keep {num}. Look at what else runs here"
    if _mean(now.values("process_cpus", "host") or [0.0]) >= _SEVERAL_CPUS:
        load += ", or lower parallel.threads: threads that share a processor wait for one another"
    return Cause("other load", load)


def _host_bound(before: Window, now: Window) -> Cause | None:
    if not _waits_for_host(now) or _waits_for_host(before):
        return None
    assert now.host_s is not None, "a device that waits for the host has a clock"
    return Cause(
        "host-bound",
        f"the device waits for the host, which takes {duration_text(now.host_s)} to hand a step over. "
        "Raise train.batch_size, or set levers.compile=regional",
    )


def _waits_for_host(window: Window) -> bool:
    if window.host_s is None or window.num_owed is None:
        return False
    return window.num_owed < _FEW_OWED and window.host_s >= _MOST_OF_A_STEP * window.step_s


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


_LOOKS: tuple[Callable[[Window, Window], Cause | None], ...] = (
    _input_wait,
    _encoding,
    _shared_device,
    _paged,
    _throttled,
    _swapping,
    _quota,
    _other_load,
    _host_bound,
)
