"""A training of a time has no last step to lower its rate to; what is named as nearest goes."""

from typing import Any

import pytest

from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections import Objection


def found(train: dict[str, Any], **optimizer: Any) -> tuple[Objection, ...]:
    mapping = {"model": "owner/any", "data": {"kind": "shapes"}, "train": train, "optimizer": optimizer}
    return objections(Experiment.model_validate(mapping), "flux", distilled=None)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_needs_the_last_step_is_refused_for_a_time(schedule: str) -> None:
    (objection,) = found({"seconds": 60}, schedule=schedule)
    assert objection.severity == "refused"
    assert f"optimizer.schedule: {schedule} comes to zero at the last step" in objection.text
    assert "Nearest: optimizer.schedule=constant" in objection.text
    assert found({"seconds": 60}, schedule="constant", warmup_steps=5) == ()
    assert found({"steps": 60}, schedule=schedule) == ()


def test_a_clock_without_a_time_is_said_to_do_nothing() -> None:
    (objection,) = found({"steps": 60, "clock": "run"})
    assert objection.severity == "warning"
    assert "train.clock has no effect" in objection.text
    assert found({"seconds": 60, "clock": "run"}) == ()
