"""A Chrome trace as torch writes it: operators nested in each other, each with the phase and block it belongs to."""

import gzip
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.input_files import RefusedFile, open_input, parse_json, read_bounded, read_opened, shown
from foretune.core.vocabulary import TimePhase

PHASE, BLOCK, STEP = "phase ", "block ", "ProfilerStep#"
"""How the ranges begin that tell phases, blocks and steps; steps are named as TensorBoard's plugin knows them."""
MOST_TRACE_BYTES = 100_000_000
"""Of the JSON text that is read; `foretune profile` writes at most half of it."""
_MOST_VALUES = 12_000_000
"""Of numbers, texts, lists and objects. Each takes tens of bytes in memory, even where it takes two in the file."""
_BETWEEN_VALUES = (b",", b"[", b"{")
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
Event = dict[str, Any]
Span = tuple[float, float]


@dataclass(slots=True)
class Operator:
    """One call of an operator on the host; times in microseconds since the trace began."""

    name: str
    begin_us: float
    end_us: float
    self_us: float
    """Without the operators it calls."""
    phase: str
    block: str | None
    is_outermost: bool
    external_id: int | None = None


@dataclass(slots=True)
class Kernel:
    """One piece of work on a device."""

    name: str
    kind: str
    begin_us: float
    end_us: float
    external_id: int | None


@dataclass
class TraceEvents:
    """What a digest needs of a trace."""

    notes: dict[str, Any]
    steps: list[Span] = field(default_factory=list)
    phases: list[tuple[float, float, str]] = field(default_factory=list)
    """(begin, end, name), in order; phases do not overlap."""
    operators: list[Operator] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    memory: list[Event] = field(default_factory=list)

    def phase_at(self, time_us: float) -> str:
        place = bisect_right(self.phases, (time_us, float("inf"), "")) - 1
        if place >= 0 and time_us < self.phases[place][1]:
            return self.phases[place][2]
        return TimePhase.OTHER


def read_trace(path: Path, *, within: Path | None = None) -> TraceEvents:
    """Reads `*.pt.trace.json`, compressed or not; `within` is the folder that it must lie in."""
    try:
        content = parse_json(_text_of(path, within))
        return understand(content["traceEvents"], dict(content.get("foretune", {})))
    # What a damaged file does to a reader: fields that are absent, or something else than they should be.
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{shown(path)} is not a readable trace: {type(error).__name__}: {error}") from error


def _text_of(path: Path, within: Path | None) -> bytes:
    with open_input(path, MOST_TRACE_BYTES, within=within) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file) as unpacking:
                text = read_bounded(unpacking.read, MOST_TRACE_BYTES, path)
        else:
            text = read_opened(file)
    if sum(map(text.count, _BETWEEN_VALUES)) > _MOST_VALUES:
        raise RefusedFile(path, f"has more than {_MOST_VALUES:,} values in it, so it is not read. Profile fewer steps.")
    return text


def understand(events: Iterable[Event], notes: dict[str, Any]) -> TraceEvents:
    """Sorts the events of a trace into what they are."""
    found = TraceEvents(notes)
    by_thread: dict[object, list[Event]] = {}
    for event in events:
        category = event.get("cat")
        if event.get("ph") == "X":
            if category == "cpu_op":
                by_thread.setdefault(event["tid"], []).append(event)
            elif category == "user_annotation":
                _take_range(found, event)
                by_thread.setdefault(event["tid"], []).append(event)
            elif category in _ON_DEVICE:
                begin = float(event["ts"])
                identity = event.get("args", {}).get("External id")
                found.kernels.append(Kernel(event["name"], category, begin, begin + float(event["dur"]), identity))
        elif event.get("name") == "[memory]":
            found.memory.append(event)
    found.steps.sort()
    found.phases.sort()
    found.kernels.sort(key=lambda kernel: kernel.begin_us)
    found.memory.sort(key=lambda event: float(event["ts"]))
    blocks: dict[int, str] = {}
    for thread in by_thread.values():
        _nest(found, thread, blocks)
    return found


def _take_range(found: TraceEvents, event: Event) -> None:
    name, begin = event["name"], float(event["ts"])
    if name.startswith(STEP):
        found.steps.append((begin, begin + float(event["dur"])))
    elif name.startswith(PHASE):
        found.phases.append((begin, begin + float(event["dur"]), name.removeprefix(PHASE)))


@dataclass(slots=True)
class _Open:
    """A range or an operator that has not ended yet."""

    end_us: float
    operator: Operator | None
    """Itself, or the innermost operator around a range."""
    block: str | None


def _nest(found: TraceEvents, thread: list[Event], blocks: dict[int, str]) -> None:
    """Walks through a thread in order. `blocks` remembers the block in which autograd's nodes were made.

    Autograd numbers its nodes: an operator of the backward pass carries the number of the forward operator it belongs
    to, and so belongs to the same block.
    """
    thread.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
    stack: list[_Open] = []
    for event in thread:
        begin = float(event["ts"])
        end = begin + float(event["dur"])
        while stack and stack[-1].end_us <= begin:
            stack.pop()
        outer = stack[-1] if stack else None
        block = outer.block if outer else None
        if event["cat"] == "user_annotation":
            name = event["name"]
            caller = outer.operator if outer else None
            stack.append(_Open(end, caller, name.removeprefix(BLOCK) if name.startswith(BLOCK) else block))
            continue
        arguments = event.get("args", {})
        number = arguments.get("Sequence number")
        if number is not None:
            if arguments.get("Fwd thread id"):
                block = block or blocks.get(number)
            elif block is not None:
                blocks.setdefault(number, block)
        caller = outer.operator if outer else None
        phase = found.phase_at(begin) if caller is None else caller.phase
        made = Operator(event["name"], begin, end, end - begin, phase, block, caller is None)
        made.external_id = arguments.get("External id")
        if caller is not None:
            caller.self_us -= min(end, caller.end_us) - begin
        found.operators.append(made)
        stack.append(_Open(end, made, block))


def union(spans: Sequence[Span]) -> list[Span]:
    """Spans in order of their beginning, merged where they touch."""
    merged: list[Span] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def overlap_us(merged: Sequence[Span], begin: float, end: float, starts: Sequence[float]) -> float:
    """How much of [begin, end) the merged spans cover; `starts` are their beginnings."""
    total = 0.0
    place = max(bisect_right(starts, begin) - 1, 0)
    while place < len(merged) and merged[place][0] < end:
        total += max(0.0, min(end, merged[place][1]) - max(begin, merged[place][0]))
        place += 1
    return total
