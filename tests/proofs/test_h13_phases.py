"""H13: every second of a run is in one of its phases, and telling them apart costs next to nothing."""

import itertools
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretune.record.events import read_events
from foretune.step.training_step import StepOutcome, TrainingStep
from foretune.training import session
from foretune.training.phases import PhaseClock
from tests.conftest import ProofSize
from tests.proofs import harness
from tests.proofs.conftest import TinyModels
from tests.proofs.harness import take_turns
from tests.training.short_runs import PROMPT, short_prepared, short_run
from tests.virtual_clock import VirtualClock

pytestmark = [pytest.mark.proof, pytest.mark.takes_turns]


@pytest.mark.parametrize("family", ["flux", "ddpm"])
def test_h13_phases_sum_to_the_wall_time(
    family: str,
    tiny_models: TinyModels,
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole time is taken around the loop; validation, saving and encoding are in it.

    Both use the processor's clock of the loop's thread, so that what the machine gives to others between two
    looks at the clock is in neither.
    """
    monkeypatch.setattr(session, "PhaseClock", partial(PhaseClock, now=time.thread_time))
    own_time = SimpleNamespace(perf_counter=time.thread_time, monotonic=time.monotonic)
    monkeypatch.setattr(session, "time", own_time)
    trained = short_run(
        tiny_models.path(family),
        tmp_path,
        train={"steps": proof_size(120, 6), "gradient_accumulation": 2},
        data={"cache_dir": str(tiny_models.cache)},
        levers={"cache_latents": False, "cache_text": False} if family == "flux" else {},
        validate={"prompts": [PROMPT], "every": proof_size(40, 3)},
        save={"every": proof_size(30, 3)},
    )
    record = trained.record
    phases_s = record.measured.phases_s or {}
    off = sum(phases_s.values()) / record.wall_s - 1
    events = [event for event in read_events(trained.run.events) if event["kind"] in ("step", "paused")]
    logged_s = sum(sum(event["phases_s"].values()) for event in events)
    # The control: without the pauses, or with the steps' time counted as their forward and backward pass alone.
    without_pauses = sum(record_s for record_s in _step_times(events)) / record.wall_s - 1
    report_figure(
        f"{family}: {len(phases_s)} phases sum to {off:+.3%} of {record.wall_s:.2f} s, events to "
        f"{logged_s / record.wall_s - 1:+.3%}; steps alone would be {without_pauses:+.0%} off"
    )
    assert abs(off) <= 0.01
    assert abs(logged_s / record.wall_s - 1) <= 0.01
    assert without_pauses < -0.01
    assert {"data", "forward", "backward", "optimizer", "logging", "validation", "save"} <= set(phases_s)


def _step_times(events: list[dict[str, Any]]) -> list[float]:
    return [event["step_s"] for event in events if event["kind"] == "step"]


def test_h13_harness_overhead(
    tiny_models: TinyModels, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    """Step by step in turns with the same steps without clock, meter, events, memory, sensors, alarm and progress."""
    num_turns = proof_size(4000, 160)
    prepared = short_prepared(
        tiny_models.path("flux"),
        tmp_path,
        "full",
        train={"steps": num_turns, "batch_size": 16},
        data={"resolution": 64, "num_samples": 64, "cache_dir": str(tiny_models.cache)},
        validate={"num_held_out": 0},
    )
    # A single step scatters by several percent, so that a few turns show only an overhead that is larger than that. One
    # in forty intervals lies above the truth: three that do are no chance.
    for number in range(_NUM_MEASUREMENTS):
        turns = take_turns(prepared, tmp_path / str(number), num_turns)
        processor, wall = turns.overhead(0), turns.overhead(1)
        low, high = turns.overhead_interval(0)
        step_ms = 1000 * statistics.median(took for took, _ in turns.bare_s)
        report_figure(
            f"harness against bare loop, {num_turns} turns of {step_ms:.0f} ms: {processor:+.2%} by processor time "
            f"({low:+.2%} to {high:+.2%}), {wall:+.2%} by wall time; {turns.sensors_share:.2%} of it in the sensors' "
            "thread"
        )
        if low <= _LIMIT:
            return
    pytest.fail(f"all of {_NUM_MEASUREMENTS} measurements show an overhead over {_LIMIT:.0%}")


@pytest.mark.parametrize("planted", [0.0, 0.05])
def test_h13_a_clock_that_costs_is_seen(
    planted: float,
    tiny_models: TinyModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    report_figure: Callable[[str], None],
) -> None:
    """The control: five percent of a bare step's time, spent in the clock, shows in the same measurement.

    By a virtual clock: steps of both loops scatter by two percent, every twentieth takes three times as long, and
    nothing else takes time.
    """
    num_turns, step_s = 80, 0.06
    prepared = short_prepared(
        tiny_models.path("flux"),
        tmp_path,
        "full",
        train={"steps": num_turns},
        data={"num_samples": 8, "cache_dir": str(tiny_models.cache)},
        validate={"num_held_out": 0},
    )
    clock, scatter, steps = VirtualClock(), random.Random("steps"), itertools.count()
    entered: list[str] = []
    call, enter = TrainingStep.__call__, PhaseClock.enter

    def timed_call(self: TrainingStep, *arguments: Any) -> StepOutcome:
        clock.advance(step_s * (3 if next(steps) % 20 == 19 else scatter.gauss(1, 0.02)))
        return call(self, *arguments)

    def slow_enter(self: PhaseClock, name: str) -> None:
        entered.append(name)
        clock.advance(planted * step_s / _NUM_PHASES_OF_A_STEP)
        enter(self, name)

    monkeypatch.setattr(TrainingStep, "__call__", timed_call)
    monkeypatch.setattr(PhaseClock, "enter", slow_enter)
    virtual = SimpleNamespace(
        process_time=clock,
        perf_counter=clock,
        time=time.time,
        pthread_getcpuclockid=lambda _: None,
        clock_gettime=lambda _: 0.0,
    )
    monkeypatch.setattr(harness, "time", virtual)
    turns = take_turns(prepared, tmp_path, num_turns)
    overhead, (low, high) = turns.overhead(0), turns.overhead_interval(0)
    report_figure(f"control: {planted:.1%} of a step planted in the clock, {overhead:+.1%} measured")
    assert len(entered) / num_turns == pytest.approx(_NUM_PHASES_OF_A_STEP, rel=0.05), "the control plants what it says"
    assert low <= planted <= high
    assert (low > _LIMIT) == (planted > _LIMIT)


_LIMIT = 0.01
_NUM_MEASUREMENTS = 3
_NUM_PHASES_OF_A_STEP = 8
