"""What memory held while a trace was made, by what it was for.

An allocation is classified by when it came and went: what the forward pass leaves for the backward pass are
activations, what the backward pass leaves for the optimizer are gradients, what the optimizer keeps is its state, and
what goes in the phase in which it came is temporary, also what checkpointing computes a second time. Parameters and
older state were there before.
"""

from dataclasses import dataclass
from typing import Any

from foretune.analyse.trace_events import TraceEvents
from foretune.core.vocabulary import MemoryPart, TimePhase

CATEGORIES = (
    "parameters",
    MemoryPart.OPTIMIZER_STATE,
    MemoryPart.GRADIENTS,
    MemoryPart.ACTIVATIONS,
    MemoryPart.INPUTS,
    MemoryPart.TEMPORARIES,
)
_NUM_POINTS = 600
_HOST, _CUDA = 0, 1


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """Bytes by category over time. Each point is the moment of its stretch at which most was held."""

    times_s: tuple[float, ...]
    """Since the first step that was looked at began."""
    held_bytes: dict[str, tuple[int, ...]]

    @property
    def totals_bytes(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*self.held_bytes.values(), strict=True)))

    def at_peak(self) -> dict[str, int]:
        totals = self.totals_bytes
        place = totals.index(max(totals))
        return {name: values[place] for name, values in self.held_bytes.items()}


@dataclass(slots=True)
class _Life:
    begin_us: float
    num_bytes: int
    end_us: float | None = None
    category: str = MemoryPart.TEMPORARIES


def memory_timeline(trace: TraceEvents) -> MemoryTimeline | None:
    """None where the trace has no memory in it."""
    device = _CUDA if trace.notes.get("device") == "cuda" else _HOST
    lives = _lives([event for event in trace.memory if event["args"].get("Device Type") == device])
    if not lives or not trace.steps:
        return None
    for life in lives:
        life.category = _category(trace, life)
    changes = [(life.begin_us, life.category, life.num_bytes) for life in lives]
    changes += [(life.end_us, life.category, -life.num_bytes) for life in lives if life.end_us is not None]
    changes.sort(key=lambda change: change[0])
    before = trace.notes.get("held_bytes", {})
    return _sampled(changes, trace.steps[0][0], trace.steps[-1][1], {name: before.get(name, 0) for name in CATEGORIES})


def _lives(events: list[dict[str, Any]]) -> list[_Life]:
    """Allocations with the moment they were freed; None where they outlived the trace."""
    lives: list[_Life] = []
    held: dict[int, _Life] = {}
    for event in events:
        time_us, num_bytes, address = float(event["ts"]), int(event["args"]["Bytes"]), event["args"]["Addr"]
        if num_bytes > 0:
            held[address] = _Life(time_us, num_bytes)
            lives.append(held[address])
        elif address in held:
            held.pop(address).end_us = time_us
    return lives


def _category(trace: TraceEvents, life: _Life) -> str:
    came = trace.phase_at(life.begin_us)
    # What outlives the trace goes in no phase of it.
    went = "never" if life.end_us is None else trace.phase_at(life.end_us)
    if came in (TimePhase.DATA, TimePhase.ENCODE):
        return MemoryPart.INPUTS
    if came == TimePhase.FORWARD:
        return MemoryPart.TEMPORARIES if went == TimePhase.FORWARD else MemoryPart.ACTIVATIONS
    if came == TimePhase.BACKWARD:
        return MemoryPart.TEMPORARIES if went == TimePhase.BACKWARD else MemoryPart.GRADIENTS
    return MemoryPart.OPTIMIZER_STATE if came == TimePhase.OPTIMIZER and went == "never" else MemoryPart.TEMPORARIES


def _sampled(
    changes: list[tuple[float, str, int]], begin_us: float, end_us: float, held: dict[str, int]
) -> MemoryTimeline:
    width_us = max((end_us - begin_us) / _NUM_POINTS, 1e-9)
    now, total = dict(held), sum(held.values())
    points: list[dict[str, int]] = []
    most, most_total = dict(now), total
    place = 0
    for number in range(_NUM_POINTS):
        edge_us = begin_us + (number + 1) * width_us
        most, most_total = dict(now), total
        while place < len(changes) and changes[place][0] <= edge_us:
            _, category, num_bytes = changes[place]
            now[category] += num_bytes
            total += num_bytes
            if total > most_total:
                most, most_total = dict(now), total
            place += 1
        points.append(most)
    return MemoryTimeline(
        times_s=tuple((number + 0.5) * width_us / 1e6 for number in range(_NUM_POINTS)),
        held_bytes={name: tuple(point[name] for point in points) for name in CATEGORIES},
    )
