"""A run that ends when its time is up: what its clock counts, and that it is the same training."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.config.lengths import only_steps
from foretune.config.reading import understand
from foretune.record.checking import check_run
from foretune.record.environment import environment_fingerprint
from foretune.record.run_directory import RunDirectory
from foretune.training.length import Length
from foretune.training.loop import Loop
from foretune.training.train import resume
from tests.training.short_runs import Recording, events_of, losses_of, short_asked, short_prepared, short_run

TinyPipeline = Callable[..., Path]
STEP_S = 1.0


class Clock:
    """A clock that advances only when asked."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


# ---- what counts


def test_steps_are_counted_until_the_last() -> None:
    length = Length(num_steps=3)
    assert [length.is_over(done) for done in (0, 2, 3)] == [False, False, True]
    assert length.left_s() is None


def test_the_clock_of_steps_counts_them_alone() -> None:
    clock = Clock()
    length = Length(num_steps=None, limit_s=2.5, now=clock)
    length.begin()
    for done, over in ((1, False), (2, False), (3, True)):
        clock.now_s += 50.0  # a pause
        length.stepped(STEP_S)
        assert length.is_over(done) is over
    assert length.counted_s == 3.0


def test_the_clock_of_the_run_counts_pauses_too_but_nothing_before_the_first_step() -> None:
    clock = Clock()
    length = Length(num_steps=None, limit_s=2.5, clock="run", now=clock)
    clock.now_s += 1000.0
    length.begin()
    clock.now_s += 1.0
    length.stepped(STEP_S)
    assert not length.is_over(1)
    clock.now_s += 1.6  # of which a step is a part
    length.stepped(0.1)
    assert length.is_over(2)
    assert length.counted_s == pytest.approx(2.6)
    clock.now_s += 9.0
    assert length.counted_s == pytest.approx(2.6), "the clock stops when it is looked at for the last time"


def test_what_the_device_owes_is_counted_as_long_as_the_last_step() -> None:
    length = Length(num_steps=None, limit_s=3.0)
    length.stepped(STEP_S)
    assert not length.is_over(2, num_owed=1)
    assert length.is_over(3, num_owed=2)


def test_what_was_counted_before_counts() -> None:
    clock = Clock()
    length = Length(num_steps=None, limit_s=5.0, clock="run", now=clock, counted_s=4.5)
    length.begin()
    clock.now_s += 0.4
    assert not length.is_over(8)
    clock.now_s += 0.2
    assert length.is_over(9)


# ---- runs


@pytest.fixture
def second_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step counts a second, whatever it took."""
    stepped = Length.stepped
    monkeypatch.setattr(Length, "stepped", lambda self, _: stepped(self, STEP_S))


def timed_run(model: Path, work: Path, seconds: float, **sections: Any) -> Any:
    train = {"steps": None, "seconds": seconds, **sections.pop("train", {})}
    return short_run(model, work, train=train, **sections)


@pytest.mark.usefixtures("second_steps")
def test_a_run_of_a_time_is_a_run_of_as_many_steps(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    model = tiny_pipeline("ddpm")
    timed = timed_run(model, tmp_path / "timed", 3.5, optimizer={"warmup_steps": 2}, validate={"every": 2})
    assert timed.record.outcome.status == "finished"
    assert timed.record.outcome.steps_done == 4
    assert timed.record.measured.counted_s == 4.0
    assert [step for step, _ in timed.record.measured.held_out_losses] == [0, 2, 4]
    longer = short_run(model, tmp_path / "steps", train={"steps": 6}, optimizer={"warmup_steps": 2})
    assert losses_of(timed.run) == losses_of(longer.run)[:4]
    assert longer.record.measured.counted_s is None
    other = timed_run(model, tmp_path / "other", 3.5, train={"seed": 1}, optimizer={"warmup_steps": 2})
    assert losses_of(other.run) != losses_of(timed.run), "the control: another seed is another training"


@pytest.mark.usefixtures("second_steps")
@pytest.mark.parametrize("stop_after", [2, 5])
def test_a_resumed_run_goes_on_with_what_is_left(
    stop_after: int, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle, and killed after its last checkpoint: then only the validation is left to be done."""
    model, validate = tiny_pipeline("ddpm"), Loop._validate

    def killed(loop: Loop, done: int) -> None:
        if done == 5:
            raise KeyboardInterrupt
        validate(loop, done)

    if stop_after == 5:
        monkeypatch.setattr(Loop, "_validate", killed)
        with pytest.raises(KeyboardInterrupt):
            timed_run(model, tmp_path, 5.0)
        monkeypatch.setattr(Loop, "_validate", validate)
    else:

        def stop(done: int) -> None:
            if done == stop_after:
                signal_now()

        timed_run(model, tmp_path, 5.0, observer=Recording(stop))
    (path,) = (tmp_path / "runs" / "short").glob("2*")
    (checkpoint,) = (path / "checkpoints").iterdir()
    assert json.loads((checkpoint / "state.json").read_text())["counted_s"] == float(stop_after)
    resumed = resume(RunDirectory.open(path), Recording())
    assert resumed.record.outcome.steps_done == 5
    assert resumed.record.measured.counted_s == 5.0
    assert [event["step"] for event in events_of(resumed.run, "validated")] == [0, 5]
    whole = short_run(model, tmp_path / "whole", train={"steps": 5})
    assert losses_of(resumed.run) == losses_of(whole.run)


def signal_now() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("clock", ["steps", "run"])
def test_real_time_is_kept_and_the_check_adds_it_up(clock: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = timed_run(tiny_pipeline("ddpm"), tmp_path, 0.3, train={"clock": clock}, validate={"num_held_out": 0})
    counted_s, times_s = trained.record.measured.counted_s, [e["step_s"] for e in events_of(trained.run, "step")]
    assert counted_s >= 0.3
    assert sum(times_s[:-1]) < 0.3
    assert (counted_s == pytest.approx(sum(times_s))) == (clock == "steps")
    assert trained.record.measured.prepare_s > 0
    assert check_run(trained.run.path).faults == ()


def test_the_check_sees_a_run_that_ended_before_its_time(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = timed_run(tiny_pipeline("ddpm"), tmp_path, 0.2, validate={"num_held_out": 0})
    path = trained.run.path / "record.json"
    record = json.loads(path.read_text())
    record["measured"]["counted_s"] = 0.1
    path.write_text(json.dumps(record))
    assert any("finished after 0.100 s of 0.2 s" in fault for fault in check_run(trained.run.path).faults)


def test_a_bench_counts_steps_whatever_the_experiment_says(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    asked = short_asked(tiny_pipeline("ddpm"), tmp_path, train={"steps": None, "seconds": 5, "clock": "run"})
    train = understand(only_steps(asked.as_asked, 7), source="the bench").experiment.train
    assert (train.steps, train.seconds, train.clock) == (7, None, "steps")


def test_threads_are_those_that_were_asked_for(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    before = torch.get_num_threads()
    try:
        short_prepared(tiny_pipeline("ddpm"), tmp_path, parallel={"threads": before + 1})
        assert environment_fingerprint()["torch"]["num_threads"] == before + 1
        short_prepared(tiny_pipeline("ddpm"), tmp_path)
        assert torch.get_num_threads() == before + 1, "left out, they stay as they are"
    finally:
        torch.set_num_threads(before)
