"""A bench becomes a row: what was measured, what was planned, and nothing of its owner."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from foretune.api.live_steps import LiveSteps
from foretune.backtests.shared.row_format import shared_row
from foretune.choices.model import ModelReference
from foretune.config.lengths import only_steps
from foretune.config.reading import Asked, understand
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.measure.bench import Bench, BenchChoices, read_repeat
from foretune.measure.bench_request import TrainingRequest
from foretune.measure.bench_summary import summary_of
from foretune.measure.bench_worker import measure_training
from foretune.measure.sharing import row_of
from foretune.measure.step_flops import StepFlops
from foretune.record.run_directory import RunDirectory


class NoTraces(LiveSteps):
    """Describes a model, and records nothing: that takes seconds."""

    def tracer(self, model: ModelReference) -> NoReturn:
        raise UserError("no step is recorded here")


@pytest.fixture
def measured(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> Bench:
    """A bench of a folder model with random weights, in this process."""
    asked = understand(
        {
            "name": "my-secret-project",
            "model": str(tiny_pipeline("ddpm")),
            "method": {"kind": "full"},
            "data": {"kind": "shapes", "resolution": 32, "cache_dir": str(tmp_path / "cache")},
            "train": {"steps": 6, "batch_size": 2, "precision": "fp32"},
            "levers": {"cache_latents": False},
            "parallel": {"device": "cpu"},
        },
        source="test",
    )
    return bench_of(asked, tmp_path)


def bench_of(asked: Asked, directory: Path) -> Bench:
    request = TrainingRequest(
        asked=only_steps(asked.as_asked, 6),
        directory=str(directory),
        is_synthetic=True,
        has_random_weights=True,
        model_flops=1e6,
    )
    series = summary_of([read_repeat(measure_training(request, Observer()))], StepFlops(model=1e6, hardware=2e6))
    return Bench(
        path=directory,
        name=asked.experiment.name,
        choices=BenchChoices(num_steps=6, num_repeats=1, is_synthetic=True, has_random_weights=True),
        series=series,
        uncompiled=None,
        break_even=None,
        warnings=("Other processes use 2.0 of 2 cores; speeds are lower",),
        asked=asked,
    )


def test_a_row_has_what_was_measured_and_nothing_of_its_owner(measured: Bench, tmp_path: Path) -> None:
    row = row_of(measured, NoTraces(Observer()))
    series = measured.series
    assert row.model == "not in the catalogue: UNet2DModel"
    assert (row.measured.step_s, row.measured.samples_per_step) == (series.mean_step_s.value, 2)
    assert row.measured.process_bytes == series.peak_host_bytes
    assert row.measured.context_bytes is not None
    assert (row.measured.width_px, row.measured.height_px, row.measured.hardware_flops) == (32, 32, 2e6)
    assert row.measured.num_params == row.measured.num_trained_params > 1000
    assert row.environment.device_kind == "cpu"
    assert row.notes == "synthetic data; random weights; the machine was busy"
    # Synthetic batches are as cached ones.
    assert row.cells()["cache_latents"] == "yes"
    # No step was recorded, so there is no plan.
    assert row.plan is None
    assert shared_row({name: text or None for name, text in row.cells().items()}).cells() == row.cells()
    text = json.dumps(row.cells())
    for private in (str(tmp_path), "my-secret-project", tmp_path.name, Path(str(measured.asked.model.folder)).name):  # type: ignore[union-attr]
        assert private not in text
    # The run says that its weights were random.
    _, _, effective = RunDirectory(Path(series.repeats[0].run)).read_experiment()
    assert effective["has_random_weights"]
    assert effective["model_folder"] is None


def test_a_token_in_what_would_be_shared_is_refused(measured: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured.asked is not None
    monkeypatch.setenv("MY_TOKEN", "to_q_secret_target")
    experiment = measured.asked.experiment
    quantize = experiment.quantize.model_copy(update={"keep": ("to_q_secret_target",)})
    asked = replace(measured.asked, experiment=experiment.model_copy(update={"quantize": quantize}))
    with pytest.raises(UserError, match="would publish what looks like a token"):
        row_of(replace(measured, asked=asked), NoTraces(Observer()))


def test_several_devices_are_not_shared(measured: Bench) -> None:
    with pytest.raises(UserError, match="several devices"):
        row_of(replace(measured, num_devices=2), NoTraces(Observer()))
