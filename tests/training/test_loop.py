"""What the loop does when things go wrong: validation, numbers, memory, signals."""

import math
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from foretune.core.observer import Observer, Observers
from foretune.record.run_directory import RunDirectory
from foretune.step.training_step import StepOutcome, TrainingStep
from foretune.training import validating
from foretune.training.loop import Loop
from foretune.training.meter import StepReading
from foretune.training.preparing import Prepared
from foretune.training.session import Session
from foretune.training.train import Trained, resume
from foretune.training.validating import Validator
from tests.training.short_runs import PROMPT, Recording, events_of, losses_of, short_prepared, short_run
from tests.virtual_clock import VirtualClock

TinyPipeline = Callable[..., Path]
CallStep = Callable[..., StepOutcome]


def spoil_step(monkeypatch: pytest.MonkeyPatch, number: int, spoil: Callable[[StepOutcome], StepOutcome]) -> None:
    """Changes the outcome of one step, or raises in its place."""
    call: CallStep = TrainingStep.__call__

    def spoiled(self: TrainingStep, step: int, *args: Any) -> StepOutcome:
        outcome = call(self, step, *args)
        return spoil(outcome) if step == number else outcome

    monkeypatch.setattr(TrainingStep, "__call__", spoiled)


def checkpoints_of(trained: Trained) -> list[str]:
    return sorted(path.name for path in trained.run.checkpoints.iterdir())


# ---- validation


def test_a_failed_validation_never_ends_the_training(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*args: object) -> None:
        raise RuntimeError("the pipeline broke")

    monkeypatch.setattr(validating, "sample", break_down)
    observer = Recording()
    trained = short_run(tiny_pipeline("flux"), tmp_path, observer=observer, validate={"prompts": [PROMPT], "every": 2})
    assert trained.record.outcome.status == "finished"
    assert trained.record.outcome.steps_done == 3
    failed = events_of(trained.run, "validation failed")
    assert [event["step"] for event in failed] == [0, 2, 3]
    assert all("RuntimeError: the pipeline broke" in event["error"] for event in failed)
    assert all("break_down" in event["traceback"] for event in failed)
    assert len(trained.record.warnings) == 3
    assert observer.of("warning")[0].endswith("The training continues.")
    # The held-out loss does not need the pipeline, and is there.
    assert [step for step, _ in trained.record.measured.held_out_losses] == [0, 2, 3]


def test_a_failed_held_out_loss_leaves_the_samples(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(self: Validator) -> float:
        raise torch.OutOfMemoryError("no memory for that")

    monkeypatch.setattr(Validator, "held_out_loss", run_out)
    trained = short_run(tiny_pipeline("flux"), tmp_path, validate={"prompts": [PROMPT]})
    assert trained.record.outcome.status == "finished"
    assert trained.record.measured.held_out_losses == ()
    assert len(list(trained.run.samples.iterdir())) == 2
    assert [event["step"] for event in events_of(trained.run, "validation failed")] == [0, 3]


def test_the_model_is_in_training_again_after_a_failed_validation(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, mode and numbers are as if nobody had looked."""
    sections: dict[str, Any] = {"train": {"ema": {"decay": 0.5}}, "validate": {"prompts": [PROMPT], "every": 1}}
    undisturbed = short_run(tiny_pipeline("flux"), tmp_path, train=sections["train"], validate={"num_held_out": 0})

    def break_down(*args: object) -> None:
        raise RuntimeError("the pipeline broke")

    monkeypatch.setattr(validating, "sample", break_down)
    disturbed = short_run(tiny_pipeline("flux"), tmp_path, **sections)
    assert losses_of(disturbed.run) == losses_of(undisturbed.run)


# ---- numbers


def test_a_loss_that_is_no_number_stops_the_run_and_nothing_after_it_is_saved(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """A learning rate that throws the weights out of range: the second loss is no number."""
    trained = short_run(
        tiny_pipeline("flux"),
        tmp_path,
        "full",
        optimizer={"lr": 1e30},
        save={"every": 1, "keep": 9},
        validate={"every": 1},
    )
    outcome = trained.record.outcome
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert "the loss of step 2 is nan" in outcome.reason
    assert "lower optimizer.lr" in outcome.reason
    assert outcome.steps_done == 1
    assert checkpoints_of(trained) == ["step-000000001"]
    assert events_of(trained.run, "ended")[0]["status"] == "failed"
    record = trained.run.read_record()
    assert record is not None
    assert record.outcome == outcome


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("part", "reason"), [("loss", "the loss of step 2 is"), ("grad_norm", "the gradient of step 2 has norm")]
)
def test_what_is_not_finite_stops_the_run_before_it_is_saved(
    part: str, reason: str, value: float, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss before a gradient may be fine, but the weights after it are lost: they must not be the newest
    checkpoint.
    """
    spoil_step(monkeypatch, 1, lambda outcome: replace(outcome, **{part: torch.tensor(value)}))
    trained = short_run(tiny_pipeline("flux"), tmp_path, save={"every": 1, "keep": 9})
    assert trained.record.outcome.status == "failed"
    assert f"{reason} {value}" in (trained.record.outcome.reason or "")
    assert checkpoints_of(trained) == ["step-000000001"]


def test_a_skipped_step_of_a_scaled_loss_is_no_failure(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_step(monkeypatch, 1, lambda outcome: replace(outcome, grad_norm=torch.tensor(math.inf)))
    trained = short_run(tiny_pipeline("flux"), tmp_path, train={"precision": "fp16"}, validate={"num_held_out": 0})
    assert trained.record.outcome.status == "finished"
    assert events_of(trained.run, "step")[1]["grad_norm"] == "inf"


# ---- telling of steps


class Unhurried(Recording):
    """Hears of the first step at once, and of the others when something else makes the loop tell."""

    patience_s = math.inf


@pytest.mark.parametrize("observer_class", [Recording, Unhurried])
def test_steps_are_told_in_order_and_none_is_missing(
    observer_class: type[Recording], tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    observer = observer_class()
    sections: dict[str, Any] = {"train": {"steps": 7}, "save": {"every": 4, "keep": 9}, "validate": {"num_held_out": 0}}
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, "full", observer=observer, **sections)
    assert [report.step for report in observer.of("stepped")] == list(range(7))
    assert [event["step"] for event in events_of(trained.run, "step")] == list(range(7))
    assert trained.record.measured.num_step_times == 7
    # Before a checkpoint everything is reported: it makes the steps before it irreversible.
    kinds = [event["kind"] for event in events_of(trained.run, "step", "saved")]
    assert kinds == ["step"] * 4 + ["saved"] + ["step"] * 3 + ["saved"]


def reported_at_once(prepared: Prepared, work: Path, *observers: Observer) -> list[int]:
    """How many steps each report tells of, in a run whose steps take 0.2 s each and whose end drains the rest."""
    reported: list[int] = []

    report = Loop._report

    def counted(loop: Loop, readings: Iterable[StepReading]) -> None:
        found = list(readings)
        reported.append(len(found))
        report(loop, found)

    clock, run = VirtualClock(), RunDirectory.create(work / "runs", "reported")
    # Without the drift alarm, which wants to know of steps as soon as other observers do.
    session = Session(run, prepared, Observers(*observers), steps_only=True, now=clock)
    with mock.patch.object(Loop, "_report", counted):
        for _ in islice(session.loop.steps(0), prepared.num_steps):
            clock.advance(0.2)
        session.loop.drain()
    session.events.close()
    return [number for number in reported if number]


def test_several_steps_are_told_at_once(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """The first is reported at once, the others when the most impatient observer has waited long enough."""
    sections: dict[str, Any] = {"train": {"steps": 8}, "validate": {"num_held_out": 0}}
    prepared = short_prepared(tiny_pipeline("ddpm"), tmp_path, "full", **sections)
    hurried = Recording(on_step=lambda _: None)
    assert reported_at_once(prepared, tmp_path, Unhurried()) == [1, 7]
    assert Observer.patience_s == 0.5
    assert reported_at_once(prepared, tmp_path, Unhurried(), Observer()) == [1, 3, 3, 1]
    assert reported_at_once(prepared, tmp_path, Unhurried(), Observer(), hurried) == [1] * 8
    assert [report.step for report in hurried.of("stepped")] == list(range(8))


def test_a_crash_does_not_swallow_the_steps_before_it(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(outcome: StepOutcome) -> StepOutcome:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    spoil_step(monkeypatch, 4, run_out)
    observer = Unhurried()
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, "full", observer=observer, train={"steps": 6})
    assert trained.record.outcome.status == "out of memory"
    assert [report.step for report in observer.of("stepped")] == [0, 1, 2, 3]
    kinds = [event["kind"] for event in events_of(trained.run, "step", "crashed")]
    assert kinds == ["step"] * 4 + ["crashed"]


# ---- memory and crashes


@pytest.mark.parametrize(
    ("error", "status"),
    [(torch.OutOfMemoryError("tried to allocate 2 GiB"), "out of memory"), (ValueError("shapes differ"), "failed")],
)
def test_a_crash_is_a_record_too(
    error: Exception, status: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(outcome: StepOutcome) -> StepOutcome:
        raise error

    spoil_step(monkeypatch, 2, crash)
    observer = Recording()
    trained = short_run(tiny_pipeline("flux"), tmp_path, observer=observer, save={"every": 1})
    assert trained.record.outcome.status == status
    assert trained.record.outcome.steps_done == 2
    assert str(error) in (trained.record.outcome.reason or "")
    (crashed,) = events_of(trained.run, "crashed")
    assert "in crash" in crashed["traceback"]
    assert trained.run.read_record() == trained.record
    assert observer.heard[-1] == ("ended", None)
    monkeypatch.undo()
    again = resume(RunDirectory.open(trained.run.path), Recording())
    assert again.record.outcome.status == "finished"
    assert again.record.measured.num_step_times == 3


# ---- signals


def send(number: signal.Signals, after: int) -> Callable[[int], None]:
    def on_step(done: int) -> None:
        if done == after:
            os.kill(os.getpid(), number)

    return on_step


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_asked_to_stop_it_saves_and_leaves(number: signal.Signals, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    handler = signal.getsignal(number)
    trained = short_run(tiny_pipeline("flux"), tmp_path, observer=Recording(send(number, after=2)), train={"steps": 50})
    assert signal.getsignal(number) == handler
    outcome = trained.record.outcome
    assert outcome.status == "interrupted"
    assert outcome.steps_done == 2
    assert outcome.reason == f"stopped by {number.name} after saving"
    assert checkpoints_of(trained) == ["step-000000002"]
    # It leaves at once: no validation after the stop.
    kinds = [event["kind"] for event in events_of(trained.run) if event["kind"] != "telemetry"]
    assert kinds[-3:] == ["saved", "paused", "ended"]


def test_a_stopped_run_goes_on_and_its_record_is_of_the_whole_run(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    sections: dict[str, Any] = {"train": {"steps": 4}, "validate": {"every": 2}}
    whole = short_run(tiny_pipeline("flux"), tmp_path, **sections)
    stopped = short_run(tiny_pipeline("flux"), tmp_path, observer=Recording(send(signal.SIGTERM, after=3)), **sections)
    assert stopped.record.outcome.status == "interrupted"
    observer = Recording()
    resumed = resume(RunDirectory.open(stopped.run.path), observer)
    assert "Resuming after step 3." in observer.of("message")
    assert [report.step for report in observer.of("stepped")] == [3]
    assert resumed.record.outcome.status == "finished"
    measured, expected = resumed.record.measured, whole.record.measured
    assert (measured.first_loss, measured.last_loss) == (expected.first_loss, expected.last_loss)
    assert measured.held_out_losses == expected.held_out_losses
    assert measured.num_step_times == 4


def test_a_signal_during_a_validation_loses_no_step(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling takes long, so that is when most signals come; what was trained before must not be lost."""
    validate = Loop._validate

    def interrupted(self: Loop, done: int) -> None:
        validate(self, done)
        if done == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Loop, "_validate", interrupted)
    trained = short_run(tiny_pipeline("flux"), tmp_path, train={"steps": 50}, validate={"every": 1})
    outcome = trained.record.outcome
    assert outcome.status == "interrupted"
    assert checkpoints_of(trained) == [f"step-{outcome.steps_done:09d}"]
    assert outcome.steps_done >= 1


def test_a_last_validation_that_was_left_is_made_after_the_resume(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = Loop._validate

    def interrupted(self: Loop, done: int) -> None:
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        validate(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_validate", interrupted)
        stopped = short_run(tiny_pipeline("flux"), tmp_path)
    assert (stopped.record.outcome.status, stopped.record.outcome.steps_done) == ("interrupted", 3)
    assert [step for step, _ in stopped.record.measured.held_out_losses] == [0]
    resumed = resume(RunDirectory.open(stopped.run.path), Recording())
    assert resumed.record.outcome.status == "finished"
    assert [step for step, _ in resumed.record.measured.held_out_losses] == [0, 3]
