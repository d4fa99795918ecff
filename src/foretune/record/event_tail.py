"""The ends of an event log: a log of any length costs the same few kilobytes to look at."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretune.core.input_files import RefusedFile, open_input, parse_json
from foretune.record.events import MOST_LOG_BYTES

TAIL_BYTES = 64 * 2**10
"""Read from the end: some two hundred steps."""
_HEAD_BYTES = 256
"""Enough for the time and the kind of the first event."""
_TIME_KEY = b'{"time_s": '


def last_events(path: Path, most_bytes: int = TAIL_BYTES) -> tuple[dict[str, Any], ...]:
    """The last whole events of a log, in order; empty where there is no log. Lines that are no events are left out."""
    try:
        with open_input(path, MOST_LOG_BYTES, within=path.parent) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            file.seek(max(0, size_bytes - most_bytes))
            content = file.read(most_bytes)
    except (OSError, RefusedFile):
        return ()
    lines = content.split(b"\n")
    # What stands before the first end of a line is cut off, and what stands behind the last one is being written.
    whole = lines[:-1] if size_bytes <= most_bytes else lines[1:-1]
    return tuple(_events(whole))


def last_step(path: Path) -> int | None:
    """How many steps a run has made, by the end of its log; None where the end mentions none."""
    steps = [event["step"] for event in last_events(path) if event["kind"] == "step" and _is_count(event.get("step"))]
    return max(steps) + 1 if steps else None


def first_event_s(path: Path) -> float | None:
    """When the first event of a log was written, in seconds since 1970; None where there is none."""
    try:
        with open_input(path, MOST_LOG_BYTES, within=path.parent) as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, RefusedFile):
        return None
    if not head.startswith(_TIME_KEY):
        return None
    text, comma, _ = head[len(_TIME_KEY) :].partition(b",")
    try:
        return float(text) if comma else None
    except ValueError:
        return None


def _events(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            event = parse_json(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str) and _is_time(event.get("time_s")):
            yield event


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
