"""The product's loop and a bare one on the same step and the same batches, taking turns step by step."""

import gc
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rich.console import Console

from foretune.cli.progress import ProgressObserver
from foretune.data.loading import loader
from foretune.record import events as events_module
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory
from foretune.training import memory_now
from foretune.training.preparing import Prepared
from foretune.training.session import Session
from foretune.training.telemetry.sampler import Sampler

_NUM_WARMUP = 10
_NUM_DRAWS = 1000
_FEWEST_OF_A_KIND = 5


@dataclass
class Turns:
    """Seconds of each step, by the processor's clock and by the wall's; both loops change the same weights."""

    harness_s: list[tuple[float, float]] = field(default_factory=list)
    bare_s: list[tuple[float, float]] = field(default_factory=list)
    did: list[frozenset[str]] = field(default_factory=list)
    """What the harness did in its turn and does not do in every one: tell of steps, draw, write what sensors said."""
    sensors_share: float = 0.0
    """Of the time, what the thread that reads the sensors worked. It works in both loops' turns, so their difference
    does not show it."""

    def overhead(self, clock: int) -> float:
        """Of all that a training has and the bare loop has not, as a share of the bare loop's time.

        Turns in which the harness did the same are compared by the median of their differences, which a busy moment of
        the machine does not move; each kind counts as often as it came. The first turns are left out, and so are kinds
        of which there are too few for a median.
        """
        kinds = self._differences(clock)
        added_s = sum(len(kind) * statistics.median(kind) for kind in kinds)
        return added_s / self._bare_s(clock, kinds) + self.sensors_share

    def overhead_interval(self, clock: int) -> tuple[float, float]:
        """Where the overhead lies in 95 of 100 measurements like this one: turns of each kind are resampled."""
        draw, kinds = random.Random("h13"), self._differences(clock)
        bare_s = self._bare_s(clock, kinds)
        drawn = sorted(
            sum(len(kind) * statistics.median(draw.choices(kind, k=len(kind))) for kind in kinds) / bare_s
            for _ in range(_NUM_DRAWS)
        )
        num_outside = round(_NUM_DRAWS * 0.025)
        return drawn[num_outside] + self.sensors_share, drawn[-1 - num_outside] + self.sensors_share

    def _differences(self, clock: int) -> list[list[float]]:
        """Of each kind of turn."""
        kinds: dict[frozenset[str], list[float]] = {}
        for ours, bare, did in islice(zip(self.harness_s, self.bare_s, self.did, strict=True), _NUM_WARMUP, None):
            kinds.setdefault(did, []).append(ours[clock] - bare[clock])
        return [kind for kind in kinds.values() if len(kind) >= _FEWEST_OF_A_KIND]

    def _bare_s(self, clock: int, kinds: list[list[float]]) -> float:
        """Of the turns of these kinds, by the median of all."""
        median_s = statistics.median(took[clock] for took in self.bare_s[_NUM_WARMUP:])
        return median_s * sum(len(kind) for kind in kinds)


class NotedLog(EventLog):
    """Knows which kinds of events were written since it was last asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kinds: set[str] = set()

    def append(self, kind: str, **fields: Any) -> None:
        self._kinds.add(kind)
        super().append(kind, **fields)

    def kinds(self) -> frozenset[str]:
        found, self._kinds = frozenset(self._kinds), set()
        return found


class OwnTime:
    """The processor's time of the harness's own turns, which is the time of a machine that does nothing else.

    What is done once a second would otherwise be done in every half second of the harness's own, and in every step
    where others have the processor.
    """

    def __init__(self) -> None:
        self.others_s = 0.0

    def __call__(self) -> float:
        return time.process_time() - self.others_s


def take_turns(prepared: Prepared, work: Path, num_turns: int) -> Turns:
    """Who goes first changes from turn to turn. Sensors, alarm and progress as in `foretune train` at a terminal."""
    run = RunDirectory.create(work / "runs", "harness")
    now = OwnTime()
    own_time = SimpleNamespace(monotonic=now, time=time.time)
    # A collection looks at all that earlier tests left, for longer than tens of steps take, in whoever's turn it comes.
    gc.collect()
    gc.freeze()
    try:
        with mock.patch.object(events_module, "time", own_time), mock.patch.object(memory_now, "time", own_time):
            return _turns(prepared, run, work, num_turns, now)
    finally:
        gc.unfreeze()


def _turns(prepared: Prepared, run: RunDirectory, work: Path, num_turns: int, now: OwnTime) -> Turns:
    events, turns, begun_s = NotedLog(run.events), Turns(), time.perf_counter()
    with (work / "screen").open("w") as screen, ProgressObserver(Console(file=screen, force_terminal=True), now) as bar:
        session = Session(run, prepared, bar, events=events, now=now)
        ours, bare = session.loop.steps(0), bare_steps(prepared)
        for number in range(num_turns):
            screen_bytes = screen.tell()
            for is_ours in (True, False) if number % 2 else (False, True):
                took = _timed(ours if is_ours else bare)
                (turns.harness_s if is_ours else turns.bare_s).append(took)
                now.others_s += 0.0 if is_ours else took[0]
            turns.did.append(events.kinds() | ({"drawn"} if screen.tell() > screen_bytes else set()))
        turns.sensors_share = _used_s(session.sampler) / (time.perf_counter() - begun_s)
        ours.close()
    events.close()
    return turns


def _used_s(sampler: Sampler) -> float:
    ident = sampler.thread.ident
    assert ident is not None, "it has been started by the first step"
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


def bare_steps(prepared: Prepared) -> Iterator[int]:
    """What one would write by hand: the next batch, the step, nothing else; the loss is read, as everyone does."""
    assert prepared.num_steps is not None, "so many turns, not so much time"
    losses = []
    for step, batch in enumerate(loader(prepared.batch_maker, 0, prepared.num_steps)):
        outcome = prepared.step(step, 1e-4, iter([prepared.encoders.ready(batch, prepared.device)]), 1)
        losses.append(outcome.loss.item())
        yield step


def _timed(steps: Iterator[int]) -> tuple[float, float]:
    processor_s, wall_s = time.process_time(), time.perf_counter()
    next(steps)
    return time.process_time() - processor_s, time.perf_counter() - wall_s
