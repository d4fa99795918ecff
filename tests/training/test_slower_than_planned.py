"""A whole run that is slower than its plan: the terminal, the log and the record say so, and it goes on."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from foretune.record.checking import check_run
from foretune.record.log_lines import SLOWER
from foretune.reports.terminal.run import measurements
from foretune.training import plan_alarm, session
from foretune.training.phases import PhaseClock
from foretune.training.train import Trained, train
from tests.reports.whole_runs import plan
from tests.training.short_runs import Recording, events_of, short_asked

TICK_S = 0.01
"""Each look at the clock takes so long, so that all steps take the same time."""
NUM_STEPS = 9


@dataclass
class Runs:
    """Trains with a plan of steps of so many seconds."""

    model: Path
    work: Path

    def __call__(self, step_s: float) -> tuple[Trained, Recording]:
        sizes: Any = {"train": {"steps": NUM_STEPS, "batch_size": 2}, "validate": {"num_held_out": 0}}
        asked = short_asked(self.model, self.work, "full", **sizes)
        found = plan(2**29, asked.experiment.whole_hash(), step_s)
        observer = Recording()
        return train(asked, self.work / "runs", observer, found, handles_signals=False), observer


@pytest.fixture(scope="module")
def runs(tiny_pipeline: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    ticks = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "PhaseClock", partial(PhaseClock, now=lambda: next(ticks) * TICK_S))
        patch.setattr(plan_alarm, "LOOKS", (NUM_STEPS - 1,))
        yield Runs(tiny_pipeline("ddpm"), tmp_path_factory.mktemp("slow"))


@pytest.fixture(scope="module")
def slow(runs: Runs) -> tuple[Trained, Recording]:
    return runs(step_s=TICK_S)


def faults_in(path: Path) -> list[str]:
    """Without that the clock of these runs is not that of the wall."""
    return [fault for fault in check_run(path).faults if "steps and pauses take" not in fault]


def test_it_is_reported_once_everywhere(slow: tuple[Trained, Recording]) -> None:
    trained, observer = slow
    (event,) = events_of(trained.run, SLOWER)
    assert event["planned_samples_per_s"] == pytest.approx(2 / TICK_S)
    assert event["measured_samples_per_s"] < event["planned_samples_per_s"] / 2
    assert trained.record.warnings == (event["text"],)
    assert observer.of("warning") == [event["text"]]
    assert trained.record.outcome.status == "finished"
    assert faults_in(trained.run.path) == []
    (line,) = [text for text in measurements(trained.record, None) if text.startswith("Speed: planned")]
    assert "200 samples/s (143 to 250), measured" in line


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"planned_samples_per_s": 150.0}, "in plan.json 200"),
        ({"measured_samples_per_s": 300.0}, "are not less than 200"),
        ({"cause": 5}, "cause of a 'slower than planned' event cannot be 5"),
        ({"text": "something else"}, "there is an alarm"),
    ],
)
def test_a_changed_event_is_found(
    changes: dict[str, Any], fault: str, slow: tuple[Trained, Recording], tmp_path: Path
) -> None:
    copied = tmp_path / slow[0].run.path.name
    shutil.copytree(slow[0].run.path, copied)
    log = copied / "events.jsonl"
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    reported = [event | (changes if event["kind"] == SLOWER else {}) for event in events]
    log.write_text("".join(json.dumps(event) + "\n" for event in reported), encoding="utf-8")
    assert any(fault in found for found in faults_in(copied))


def test_a_plan_for_other_settings_says_nothing(slow: tuple[Trained, Recording]) -> None:
    """As after `foretune resume RUN levers...`: the plan is for the run as it was."""
    record = slow[0].record
    assert record.plan is not None
    assert session.planned_time(record.plan, record.experiment_hash) == record.plan.time
    assert session.planned_time(record.plan, "another") is None
    assert session.planned_time(None, record.experiment_hash) is None
    other = record.model_copy(update={"experiment_hash": "another"})
    assert not any(text.startswith("Speed: planned") for text in measurements(other, None))


def test_an_alarm_that_fails_does_not_end_the_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: plan_alarm.PlanAlarm) -> bool:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(plan_alarm.PlanAlarm, "_look", failing)
    trained, observer = runs(step_s=TICK_S)
    assert trained.record.outcome.status == "finished"
    text = "PlanAlarm failed and was put away: ZeroDivisionError: planted"
    assert trained.record.warnings == (text,)
    assert observer.of("warning") == [f"{text}. The training goes on."]
    assert len(events_of(trained.run, "instrument failed")) == 1
    assert faults_in(trained.run.path) == []
