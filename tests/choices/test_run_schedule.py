"""The order of a run's phases, written once: what training executes, plans replay and the check of logs expects."""

from collections.abc import Callable, Sequence

import pytest

from foretune.choices.run_schedule import RunSchedule
from foretune.core.vocabulary import RunPhase

STEP, SAVE, VALIDATE = RunPhase.STEP, RunPhase.SAVE, RunPhase.VALIDATE


def after(num_steps: int) -> Callable[[int], bool]:
    return lambda done: done == num_steps


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            RunSchedule(save_every=None, validate_every=None),
            [(VALIDATE, 0), (STEP, 1), (STEP, 2), (STEP, 3), (SAVE, 3), (VALIDATE, 3)],
        ),
        (
            RunSchedule(save_every=2, validate_every=2),
            [(VALIDATE, 0), (STEP, 1), (STEP, 2), (SAVE, 2), (VALIDATE, 2), (STEP, 3), (SAVE, 3), (VALIDATE, 3)],
        ),
        (RunSchedule(save_every=1, validate_every=1, steps_only=True), [(STEP, 1), (STEP, 2), (STEP, 3)]),
    ],
)
def test_order(schedule: RunSchedule, expected: Sequence[tuple[RunPhase, int]]) -> None:
    assert list(schedule.phases(0, after(3))) == expected


def test_a_run_that_is_asked_to_stop_saves_and_ends() -> None:
    schedule = RunSchedule(save_every=None, validate_every=1)
    stopped = list(schedule.phases(0, after(9), is_stopping=lambda done: done == 2))
    assert stopped[-2:] == [(STEP, 2), (SAVE, 2)]
    # After its last step it has nothing left to stop.
    ended = list(schedule.phases(0, after(2), is_stopping=lambda done: done == 2))
    assert ended[-3:] == [(STEP, 2), (SAVE, 2), (VALIDATE, 2)]


def test_a_resumed_run_validates_what_it_had_not() -> None:
    schedule = RunSchedule(save_every=2, validate_every=2)
    assert next(schedule.phases(2, after(4))) == (VALIDATE, 2)
    assert next(schedule.phases(2, after(4), validated={0, 2})) == (STEP, 3)
    # One that was stopped after its last checkpoint has only that validation to make.
    assert list(schedule.phases(4, after(4), validated={0, 2})) == [(VALIDATE, 4)]
    assert list(schedule.phases(4, after(4), validated={4})) == []


def test_each_question_is_asked_once_after_each_step() -> None:
    """A clock and a signal may answer otherwise when they are asked again."""
    asked: list[tuple[str, int]] = []

    def is_last(done: int) -> bool:
        asked.append(("last", done))
        return done == 2

    def is_stopping(done: int) -> bool:
        asked.append(("stopping", done))
        return False

    list(RunSchedule(save_every=1, validate_every=1).phases(0, is_last, is_stopping))
    assert asked == [("last", 0), ("last", 1), ("stopping", 1), ("last", 2), ("stopping", 2)]
