"""The Chrome trace of a profile, small enough to open; it says what was left out."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

from foretune.core.units import bytes_text
from foretune.training.profiling.marks import STEP

MOST_TRACE_BYTES = 50_000_000
"""Of the JSON text; the file is compressed, and takes a tenth of it."""
_UNUSED = frozenset({"Record function id", "Ev Idx", "finished", "Concrete Inputs"})
_MEMORY = "[memory]"
_HEAD_BYTES = 10_000
_SMALLEST_EVENT_BYTES = 110
_SMALL = ((0.5, 64), (1.0, 256), (2.0, 1024), (4.0, 4096), (8.0, 16_384), (16.0, 65_536))
"""What goes first, in microseconds and bytes: operators that only change a view, allocations of single numbers."""
Event = dict[str, Any]


def write_trace(raw: Path, directory: Path, notes: dict[str, Any], most_bytes: int = MOST_TRACE_BYTES) -> Path:
    """Turns what torch exported into `profile/foretune.<time>.pt.trace.json.gz`, the name TensorBoard's plugin reads.

    `notes` become the trace's `foretune` entry. What does not fit goes: the smallest first, then steps from the end.
    """
    content = json.loads(raw.read_text(encoding="utf-8"))
    events = [_lean(event) for event in content.pop("traceEvents")]
    content.pop("traceName", None)  # the temporary file that torch wrote
    kept, left_out = _capped(events, most_bytes)
    head = {**content, "foretune": {**notes, "left_out": left_out}}
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"foretune.{time.time_ns()}.pt.trace.json.gz"
    temporary = path.with_name(f".{path.name}.writing")
    with gzip.open(temporary, "wt", compresslevel=5, encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(kept))
        file.write("\n]}\n")
    temporary.replace(path)
    return path


def _lean(event: Event) -> Event:
    arguments = event.get("args")
    if arguments:
        event["args"] = {key: value for key, value in arguments.items() if key not in _UNUSED}
        if not arguments.get("Fwd thread id", 1):
            del event["args"]["Fwd thread id"]  # said of every forward operator; only backward ones have one
    return event


def _capped(events: list[Event], most_bytes: int) -> tuple[list[str], str | None]:
    """The events as lines that fit, and a sentence on what was left out."""
    what, kept = None, events
    for shortest_us, smallest_bytes in ((0.0, 0), *_SMALL):
        if shortest_us:
            kept = [event for event in events if not _is_small(event, shortest_us, smallest_bytes)]
            what = f"operators under {shortest_us:g} us, allocations under {bytes_text(smallest_bytes)}"
        # Writing all events only to count their letters would take seconds.
        if len(kept) * _SMALLEST_EVENT_BYTES < most_bytes:
            lines = [json.dumps(event, separators=(",", ":")) for event in kept]
            if _fits(lines, most_bytes):
                return lines, what and f"{what}, to keep the trace under {most_bytes / 1e6:.0f} MB"
    return _without_last_steps(kept, str(what), most_bytes)


def _without_last_steps(events: list[Event], what: str, most_bytes: int) -> tuple[list[str], str]:
    """The steps that fit, at least one."""
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    ends = sorted(
        float(event["ts"]) + float(event["dur"]) for event in events if str(event.get("name", "")).startswith(STEP)
    )
    num_kept, kept = len(ends), lines
    while num_kept > 1 and not _fits(kept, most_bytes):
        num_kept -= 1
        last = ends[num_kept - 1]
        kept = [line for event, line in zip(events, lines, strict=True) if not float(event.get("ts", 0)) > last]
    gone = f" and the last {len(ends) - num_kept} of {len(ends)} steps" if num_kept < len(ends) else ""
    return kept, f"{what}{gone}, to keep the trace under {most_bytes / 1e6:.0f} MB"


def _fits(lines: list[str], most_bytes: int) -> bool:
    return sum(map(len, lines)) + 2 * len(lines) <= most_bytes - _HEAD_BYTES


def _is_small(event: Event, shortest_us: float, smallest_bytes: int) -> bool:
    if event.get("name") == _MEMORY:
        return abs(int(event["args"].get("Bytes", 0))) < smallest_bytes
    if event.get("cat") == "fwdbwd":
        return True
    return event.get("cat") == "cpu_op" and float(event.get("dur", 0)) < shortest_us
