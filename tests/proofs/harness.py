"""The product's loop and a bare one on the same step and the same batches, taking turns step by step."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from foretune.data.loading import loader
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory
from foretune.run.checkpoints import CheckpointStore
from foretune.run.interrupts import StopRequest
from foretune.run.loop import Loop
from foretune.run.observer import Observer
from foretune.run.preparing import Prepared
from foretune.run.train import build_validator
from foretune.run.watching import sampler_for


@dataclass
class Turns:
    """Seconds of each step, by the processor's clock and by the wall's; both loops change the same weights."""

    harness_s: list[tuple[float, float]] = field(default_factory=list)
    bare_s: list[tuple[float, float]] = field(default_factory=list)

    def ratios(self, clock: int) -> list[float]:
        return [ours[clock] / bare[clock] for ours, bare in zip(self.harness_s, self.bare_s, strict=True)]


def take_turns(prepared: Prepared, work: Path, num_turns: int) -> Turns:
    """Who goes first changes from turn to turn. Sensors are read all the time, as in a training."""
    run = RunDirectory.create(work / "runs", "harness")
    events = EventLog(run.events)
    store = CheckpointStore(run.checkpoints, keep=1)
    loop = Loop(prepared, store, build_validator(run, prepared), events, Observer(), StopRequest())
    loop.instruments = [sampler_for(prepared.device, events)]
    ours, bare = loop.steps(0), bare_steps(prepared)
    turns = Turns()
    for number in range(num_turns):
        for is_ours in (True, False) if number % 2 else (False, True):
            took = _timed(ours if is_ours else bare)
            (turns.harness_s if is_ours else turns.bare_s).append(took)
    ours.close()
    events.close()
    return turns


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
