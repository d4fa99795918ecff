"""Logs of runs that end when their time is up: which order is right, and whether the time adds up."""

from pathlib import Path
from typing import Any

import pytest

from foretune.choices.run_schedule import RunSchedule
from foretune.choices.training import Train
from foretune.core.values import RunRecord
from foretune.record.log_budget import budget_faults
from foretune.record.log_order import LoggedSchedule, LoggedSession, order_faults
from foretune.record.run_directory import RunDirectory
from tests.analyse.made_runs import make_run

SCHEDULE = LoggedSchedule(RunSchedule(save_every=5, validate_every=None), num_steps=None, has_pauses=True)
STEP_S = 0.5


def session(first_step: int, num_done: int, *tail: tuple[str, int], end: str | None = None) -> LoggedSession:
    """Steps with what a run does between them, then `tail`, each event followed by its pause."""
    events: list[dict[str, Any]] = []

    def add(kind: str, step: int) -> None:
        fields = {"path": f"step-{step:09d}", "step_s": STEP_S, "held_out_loss": None}
        events.append({"kind": kind, "step": step, "line": len(events), **fields})
        if kind != "step":
            events.append({"kind": "paused", "step": step, "line": len(events)})

    if first_step == 0:
        add("validated", 0)
    for step in range(first_step, num_done):
        add("step", step)
        if (step + 1) % 5 == 0 and ("saved", step + 1) not in tail:
            add("saved", step + 1)
    for kind, step in tail:
        add(kind, step)
    ended = None if end is None else {"status": end, "steps_done": num_done, "line": 999}
    return LoggedSession({"first_step": first_step, "line": 0}, events, ended)


def faults(*sessions: LoggedSession) -> list[str]:
    return list(order_faults(list(sessions), SCHEDULE))


def test_a_run_may_end_after_any_step_if_it_saves_and_validates_then() -> None:
    assert faults(session(0, 7, ("saved", 7), ("validated", 7), end="finished")) == []
    assert faults(session(0, 10, ("saved", 10), ("validated", 10), end="finished")) == []
    (missing,) = faults(session(0, 7, ("saved", 7), end="finished"))
    assert "'validated' of step 7 is missing" in missing
    assert faults(session(0, 7, end="finished")) != []


def test_a_run_that_was_killed_may_have_come_further_than_it_did_in_the_end() -> None:
    """It had made 12 steps and lost all but 5; the machine was slower the second time."""
    second = session(5, 9, ("saved", 9), ("validated", 9), end="finished")
    assert faults(session(0, 12), second) == []
    assert faults(session(0, 12)) == []
    assert faults(session(0, 7, ("saved", 7), end="interrupted")) == []
    killed_after_its_last_save = session(0, 7, ("saved", 7))
    assert faults(killed_after_its_last_save, session(7, 7, ("validated", 7), end="finished")) == []


def test_a_step_that_is_not_there_is_missed() -> None:
    cut = session(0, 7, ("saved", 7), ("validated", 7), end="finished")
    cut.events = [event for event in cut.events if (event["kind"], event["step"]) != ("step", 3)]
    assert "'step' of step 4 where 'step' of step 3 should be" in faults(cut)[0]
    killed = session(0, 12)
    killed.events = [event for event in killed.events if event["step"] != 4]
    assert faults(killed) != []


@pytest.mark.parametrize(
    ("counted_s", "limit_s", "fault"),
    [
        (3.5, 3.2, None),
        (3.5, None, "no time was requested"),
        (None, 3.2, "what was counted is not recorded"),
        (3.5, 4.0, "finished after 3.500 s of 4 s"),
        (9.0, 3.2, "9.000000 s were counted, by the log 3.500000 s"),
        (3.5, 2.9, "steps were made after 2.9 s had passed"),
    ],
)
def test_the_time_adds_up(counted_s: float | None, limit_s: float | None, fault: str | None, tmp_path: Path) -> None:
    record = RunDirectory(make_run(tmp_path / "run", [STEP_S] * 7)).read_record()
    assert isinstance(record, RunRecord)
    changed = record.model_copy(update={"measured": record.measured.model_copy(update={"counted_s": counted_s})})
    train = Train(seconds=limit_s) if limit_s is not None else Train(steps=7)
    found = list(budget_faults(changed, [session(0, 7, end="finished")], train))
    assert found == [] if fault is None else any(fault in text for text in found)
