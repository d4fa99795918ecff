"""Measures many short pieces of work in turns, within a given time.

Each round measures every piece once, so that whatever else runs on the machine for a while slows all of them alike. Of
the samples of a piece the fastest counts: other programs and clocks that rise only ever add time, and on a machine
that is busy half of the time the median is a mixture of both states, while the fastest of a dozen samples is not. How
far the median is above it tells how sure the figure is.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from foretune.core.values.device_profile import KernelTime

MOST_ROUNDS = 16
_LEAST_ROUNDS = 4
"""The larger pieces are left out where this many rounds would not fit into the time."""
_MOST_SAMPLE_S = 0.2
_VISIT_S = 2e-4
_MOST_SAMPLES = 4
"""A piece shorter than a visit is sampled again, up to this often."""

Run = Callable[[], object]


class Stopwatch(Protocol):
    """Measures one run of a piece on the device."""

    def __call__(self, run: Run) -> float:
        """Seconds."""


@dataclass(frozen=True)
class TimedPiece:
    """Something to measure."""

    key: Hashable
    group: str
    """Pieces of a group take about as long as they have work."""
    work: float
    variants: tuple[Callable[[], Run], ...]
    """Each prepares new operands and returns what is measured. The mean of all variants counts."""


@dataclass(frozen=True)
class Rounds:
    """What was measured."""

    timings: dict[Hashable, KernelTime]
    num_rounds: int
    """Rounds that were completed."""


def measure_in_rounds(
    pieces: Iterable[TimedPiece],
    stopwatch: Stopwatch,
    budget_s: float,
    now: Callable[[], float],
    progress: Callable[[float], None] = lambda _share: None,
) -> Rounds:
    """Measures the pieces that fit into the budget, the smallest of each group in any case."""
    begin_s = now()
    deadline_s = begin_s + budget_s

    def tell() -> None:
        progress(min(1.0, (now() - begin_s) / budget_s) if budget_s > 0 else 1.0)

    chosen = _warmed_up(pieces, stopwatch, budget_s, now, tell)
    samples: dict[tuple[Hashable, int], list[float]] = defaultdict(list)
    num_rounds = 0
    while num_rounds < MOST_ROUNDS and now() < deadline_s:
        for piece, once_s in chosen:
            if now() + once_s * len(piece.variants) > deadline_s:
                break
            for number in range(len(piece.variants)):
                samples[piece.key, number] += _visited(piece.variants[number], once_s, stopwatch)
        else:
            num_rounds += 1
            tell()
            continue
        break
    progress(1.0)
    return Rounds({piece.key: _timing(piece, once_s, samples) for piece, once_s in chosen}, num_rounds)


def _warmed_up(
    pieces: Iterable[TimedPiece],
    stopwatch: Stopwatch,
    budget_s: float,
    now: Callable[[], float],
    tell: Callable[[], None],
) -> list[tuple[TimedPiece, float]]:
    """The pieces that fit, in the order they are measured in, each with a first sample."""
    chosen: list[tuple[TimedPiece, float]] = []
    last: dict[str, tuple[float, float]] = {}
    round_s, deadline_s = 0.0, now() + budget_s / 2
    for piece in _small_ones_first(pieces):
        if piece.group in last:
            work, seconds = last[piece.group]
            expected_s = seconds * max(1.0, piece.work / work)
            of_round_s = round_s + expected_s * len(piece.variants)
            if expected_s > _MOST_SAMPLE_S or of_round_s * _LEAST_ROUNDS > budget_s or now() > deadline_s:
                continue
        try:
            piece.variants[0]()()
            once_s = stopwatch(piece.variants[0]())
        except RuntimeError:
            # The device has no such kernel, or too little memory for it.
            continue
        last[piece.group] = piece.work, once_s
        round_s += once_s * len(piece.variants)
        chosen.append((piece, once_s))
        if len(chosen) % 20 == 0:
            tell()
    return chosen


def _small_ones_first(pieces: Iterable[TimedPiece]) -> list[TimedPiece]:
    """By the rank of their work in their own group, so that all groups get their share of a short time."""
    groups: dict[str, list[TimedPiece]] = defaultdict(list)
    for piece in pieces:
        groups[piece.group].append(piece)
    ranked: list[tuple[float, TimedPiece]] = []
    for group in groups.values():
        by_work = sorted(group, key=lambda piece: piece.work)
        ranked += [(rank / len(by_work), piece) for rank, piece in enumerate(by_work)]
    return [piece for _, piece in sorted(ranked, key=lambda pair: pair[0])]


def _visited(prepare: Callable[[], Run], once_s: float, stopwatch: Stopwatch) -> list[float]:
    if once_s < _VISIT_S:
        # The code of a short kernel is in no cache after so many others, as it would be in a step that repeats it.
        prepare()()
    num = max(1, min(_MOST_SAMPLES, math.floor(_VISIT_S / max(once_s, 1e-9))))
    return [stopwatch(prepare()) for _ in range(num)]


def _timing(piece: TimedPiece, once_s: float, samples: dict[tuple[Hashable, int], list[float]]) -> KernelTime:
    by_variant = [samples.get((piece.key, number)) for number in range(len(piece.variants))]
    measured = [found for found in by_variant if found]
    if not measured:
        # Only the first sample, of which nothing says how far it is off.
        return KernelTime(once_s, 1.0)
    return KernelTime(
        statistics.fmean(min(found) for found in measured), statistics.fmean(spread_of(found) for found in measured)
    )


def spread_of(samples: Sequence[float]) -> float:
    """Median over fastest, minus one; one sample alone may be far off."""
    fastest = min(samples)
    return statistics.median(samples) / fastest - 1 if len(samples) > 1 and fastest > 0 else 1.0
