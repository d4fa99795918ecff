"""H13: every second of a run is in one of its phases, and telling them apart costs next to nothing."""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretune.record.events import read_events
from foretune.training import session
from foretune.training.phases import PhaseClock
from foretune.training.preparing import Prepared
from tests.conftest import ProofSize
from tests.proofs import harness
from tests.proofs.conftest import TinyModels
from tests.proofs.harness import bare_steps, take_turns
from tests.training.short_runs import PROMPT, short_prepared, short_run

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

    Both are told by the processor's clock of the loop's thread, so that what the machine gives to others between two
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
    told_s = sum(sum(event["phases_s"].values()) for event in events)
    # The control: without the pauses, or with the steps' time counted as their forward and backward pass alone.
    without_pauses = sum(record_s for record_s in _step_times(events)) / record.wall_s - 1
    report_figure(
        f"{family}: {len(phases_s)} phases sum to {off:+.3%} of {record.wall_s:.2f} s, events to "
        f"{told_s / record.wall_s - 1:+.3%}; steps alone would be {without_pauses:+.0%} off"
    )
    assert abs(off) <= 0.01
    assert abs(told_s / record.wall_s - 1) <= 0.01
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
    turns = take_turns(prepared, tmp_path, num_turns)
    processor, wall = turns.overhead(0), turns.overhead(1)
    low, high = turns.overhead_interval(0)
    step_ms = 1000 * statistics.median(took for took, _ in turns.bare_s)
    report_figure(
        f"harness against bare loop, {num_turns} turns of {step_ms:.0f} ms: {processor:+.2%} by processor time "
        f"({low:+.2%} to {high:+.2%}), {wall:+.2%} by wall time; {turns.sensors_share:.2%} of it in the sensors' thread"
    )
    # A single step scatters by several percent: a few turns show only an overhead that is larger than that.
    assert low <= 0.01


def test_h13_a_clock_that_costs_is_seen(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report_figure: Callable[[str], None]
) -> None:
    """The control: five percent of a bare step's time, spent in the clock, shows in the same measurement."""
    num_turns = 60
    prepared = short_prepared(
        tiny_models.path("flux"),
        tmp_path,
        "full",
        train={"steps": num_turns, "batch_size": 16},
        data={"resolution": 64, "num_samples": 64, "cache_dir": str(tiny_models.cache)},
        validate={"num_held_out": 0},
    )
    enter, num_entered = PhaseClock.enter, 0
    bare_s: list[float] = []
    spun_s: list[float] = [0.0]

    def timed_bare_steps(prepared: Prepared) -> Iterator[int]:
        steps = bare_steps(prepared)
        while True:
            begun_s = time.process_time()
            step = next(steps)
            bare_s.append(time.process_time() - begun_s)
            spun_s.append(0.0)
            yield step

    def slow_enter(self: PhaseClock, name: str) -> None:
        """By what bare steps take at this moment, so that a machine that gets slower does not change the share."""
        nonlocal num_entered
        num_entered += 1
        begun_s = time.process_time()
        if bare_s:
            spin_s = _PLANTED * statistics.median(bare_s[-9:]) / (num_entered / len(spun_s))
            while time.process_time() - begun_s < spin_s:
                pass
        spun_s[-1] += time.process_time() - begun_s
        enter(self, name)

    monkeypatch.setattr(PhaseClock, "enter", slow_enter)
    monkeypatch.setattr(harness, "bare_steps", timed_bare_steps)
    turns = take_turns(prepared, tmp_path, num_turns)
    overhead, (low, _) = turns.overhead(0), turns.overhead_interval(0)
    # Over many turns: who goes first changes, so that two steps of the harness may lie between two bare ones.
    planted = statistics.fmean(spun_s[num_turns // 4 :]) / statistics.median(bare_s[num_turns // 4 :])
    report_figure(f"control: {planted:.1%} of a step planted in the clock, {overhead:+.1%} measured")
    assert planted == pytest.approx(_PLANTED, rel=0.25), "the control plants what it says"
    assert low > _LIMIT


_PLANTED, _LIMIT = 0.05, 0.01
