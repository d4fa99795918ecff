"""events.jsonl line by line: is each an event, with the fields that its kind has?"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foretune.core.input_files import parse_json
from foretune.record.events import new_digest

Event = dict[str, Any]
_NOT_FINITE = ("nan", "inf", "-inf")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_norm(value: Any) -> bool:
    """Absent without clipping; not finite where a scaled loss made the step be skipped."""
    return value is None or value in _NOT_FINITE or (is_number(value) and value >= 0)


def _is_loss(value: Any) -> bool:
    """A step without a finite loss ends the run before it is written."""
    return is_number(value) and value >= 0


def _is_held_out(value: Any) -> bool:
    return value is None or value in _NOT_FINITE or _is_loss(value)


def _is_share_of_time(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_text(name) and is_number(s) and s >= 0 for name, s in value.items())


def _is_step_s(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_rate(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_reason(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_status(value: Any) -> bool:
    return value in ("finished", "interrupted", "out of memory", "failed")


SLOWER = "slower than planned"
"""The kind of event that says that a run is far slower than its plan."""
FIELDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "started": {"first_step": _is_count, "environment": lambda value: isinstance(value, dict)},
    "step": {"step": _is_count, "loss": _is_loss, "grad_norm": _is_norm, "lr": is_number, "step_s": _is_step_s},
    "paused": {"step": _is_count, "phases_s": _is_share_of_time},
    "saved": {"step": _is_count, "path": _is_text},
    "validated": {"step": _is_count, "held_out_loss": _is_held_out, "samples": lambda value: isinstance(value, list)},
    "validation failed": {"step": _is_count, "error": _is_text, "traceback": _is_text},
    "telemetry": {"read_s": is_number},
    "alarm": {"step": _is_count, "cause": _is_text, "text": _is_text},
    SLOWER: {
        "step": _is_count,
        "cause": _is_text,
        "text": _is_text,
        "planned_samples_per_s": _is_rate,
        "measured_samples_per_s": _is_rate,
    },
    "profiled": {"first_step": _is_count, "num_steps": _is_count, "path": _is_text},
    "instrument failed": {"error": _is_text, "traceback": _is_text},
    "peak": {"flops_per_s": is_number, "source": _is_text, "is_measured": lambda value: isinstance(value, bool)},
    "crashed": {"traceback": _is_text},
    "ended": {"status": _is_status, "steps_done": _is_count, "reason": _is_reason},
}
"""Every kind of event, and what each of its fields must be."""
_OPTIONAL: Mapping[str, Callable[[Any], bool]] = {
    "phases_s": _is_share_of_time,
    "host_phases_s": _is_share_of_time,
    "num_owed": _is_count,
    "stop_s": _is_step_s,
    "memory_bytes": lambda value: isinstance(value, dict) and all(_is_count(held) and held for held in value.values()),
}


@dataclass
class Log:
    """The events that could be read, and what is wrong with the lines."""

    events: list[Event] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    is_cut_short: bool = False
    """Whether the last line is not whole, which only a kill explains."""


def read_log(content: bytes) -> Log:
    """Every line, with its number in each fault."""
    log = Log()
    *lines, rest = content.split(b"\n")
    log.is_cut_short = bool(rest)
    so_far = new_digest(b"")
    for number, line in enumerate(lines, start=1):
        event = _event(line, number, log.faults)
        if event is not None:
            event["line"] = number
            digest = event.get("digest")
            if event["kind"] == "ended" and digest is not None and digest != so_far.hexdigest():
                log.faults.append(f"line {number}: the lines before it are not those that were written")
            log.events.append(event)
        so_far.update(line + b"\n")
    return log


def _event(line: bytes, number: int, faults: list[str]) -> Event | None:
    try:
        event = parse_json(line, object_pairs_hook=_unique, parse_constant=_refused)
    except ValueError as error:
        faults.append(f"line {number}: no JSON event: {error}")
        return None
    if not isinstance(event, dict) or not is_number(event.get("time_s")) or str(event.get("kind")) not in FIELDS:
        kind = event.get("kind") if isinstance(event, dict) else None
        faults.append(f"line {number}: no event with a time and a known kind (kind: {kind!r})")
        return None
    wrong = [name for name, is_right in FIELDS[event["kind"]].items() if name not in event or not is_right(event[name])]
    wrong += [name for name, is_right in _OPTIONAL.items() if name in event and not is_right(event[name])]
    for name in wrong:
        found = repr(event[name])[:80] if name in event else "absent"
        faults.append(f"line {number}: {name} of a {event['kind']!r} event cannot be {found}")
    return None if wrong else event


def _unique(pairs: list[tuple[str, Any]]) -> Event:
    event = dict(pairs)
    if len(event) < len(pairs):
        raise ValueError("a field stands there twice")
    return event


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")
