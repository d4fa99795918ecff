"""Steps that are measured alone: what a slow device still owes at their end is read too."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from foretune.measure.bench_request import TrainingRequest
from foretune.measure.bench_worker import measure_training
from foretune.measure.profiling import NUM_STEPS_BEFORE, profile
from foretune.record.run_directory import RunDirectory
from foretune.training import meter as meter_module
from tests.training.short_runs import Recording, events_of, short_asked, short_mapping

TinyPipeline = Callable[..., Path]


class NeverByItself:
    """A device's event that comes about only when somebody waits for it."""

    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.is_done = True


@pytest.fixture(autouse=True)
def slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number arrives while the steps are made."""

    def send(values: Sequence[torch.Tensor]) -> tuple[Callable[[], list[float]], NeverByItself]:
        return lambda: [value.item() for value in values], NeverByItself()

    monkeypatch.setattr(meter_module, "_sent_to_host", send)


def test_a_bench_reads_what_the_device_owes(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    asked = short_mapping(tiny_pipeline("flux"), tmp_path)
    request = TrainingRequest(asked=asked, directory=str(tmp_path / "bench"), is_synthetic=True)
    run = RunDirectory.open(measure_training(request, Recording()))
    record = run.read_record()
    assert record is not None
    assert record.measured.num_step_times == asked["train"]["steps"]
    assert [event["step"] for event in events_of(run, "step")] == list(range(asked["train"]["steps"]))


def test_a_profile_reads_what_the_device_owes(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    run = profile(short_asked(tiny_pipeline("flux"), tmp_path), tmp_path / "runs", 2, Recording())
    record = run.read_record()
    assert record is not None
    assert record.measured.num_step_times == NUM_STEPS_BEFORE
    assert record.measured.last_loss is not None
