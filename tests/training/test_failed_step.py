"""After a value that is not finite: what the search says, and that the run has its record whatever the search does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.data.batch import Batch
from foretune.step.training_step import TrainingStep
from tests.training.short_runs import events_of, short_run

_STEP = 2


@pytest.fixture
def reason(
    tiny_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], str]:
    """Why a run ends whose loss is multiplied in its third step."""
    loss = TrainingStep.loss

    def run(factor: float) -> str:
        def spoilt(self: TrainingStep, batch: Batch) -> torch.Tensor:
            return loss(self, batch) * (factor if torch.is_grad_enabled() and batch.step == _STEP else 1.0)

        monkeypatch.setattr(TrainingStep, "loss", spoilt)
        trained = short_run(tiny_pipeline("ddpm"), tmp_path, train={"steps": 4}, save={"every": 1})
        record = trained.run.read_record()
        assert record is not None
        assert (record.outcome.status, record.outcome.steps_done) == ("failed", _STEP)
        assert events_of(trained.run, "step"), "its log is whole, too"
        return record.outcome.reason or ""

    return run


def test_a_norm_that_overflows_is_not_blamed_on_the_machine(reason: Callable[[float], str]) -> None:
    """Its gradients are finite, and so is every layer: 1e25 is, its square is not."""
    found = reason(1e25)
    assert "the gradient of step 3 has norm inf" in found
    assert "the loss or the gradient norm overflows" in found
    assert "does not compute the same" not in found


def test_a_search_that_fails_leaves_the_record(reason: Callable[[float], str], monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> list[str]:
        raise torch.OutOfMemoryError("there is no room for a second try")

    monkeypatch.setattr("foretune.training.session.explained", out_of_memory)
    found = reason(float("nan"))
    assert "the loss of step 3 is nan" in found
    assert "The search for the first value failed (OutOfMemoryError: there is no room" in found
