"""A rehearsal runs every phase of a run, and notices what would go wrong in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import foretune as ft
from foretune.core.errors import Refused
from foretune.step.training_step import TrainingStep
from foretune.training.checkpoint_files import Checkpoint
from foretune.training.checkpoints import CheckpointStore
from tests.training.short_runs import Recording, short_mapping

TinyPipeline = Callable[..., Path]


def asked(tiny_pipeline: TinyPipeline, work: Path) -> dict[str, Any]:
    train: dict[str, Any] = {"epochs": 50, "steps": None, "ema": {}}
    sections: dict[str, Any] = {"train": train, "save": {"every": 100}, "validate": {"every": 30}}
    return short_mapping(tiny_pipeline("ddpm"), work, **sections)


def test_every_phase_runs_and_nothing_is_left(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    observer, runs = Recording(), tmp_path / "runs"
    found = ft.rehearse(asked(tiny_pipeline, tmp_path), runs=runs, observer=observer)
    # 16 or so of 20 samples are trained on, two in a step.
    by_name = {phase.name: phase for phase in found.phases}
    num_steps = by_name["step"].times
    assert num_steps is not None
    assert num_steps % 50 == 0
    assert by_name["checkpoint"].times == num_steps // 100 + (num_steps % 100 > 0)
    assert by_name["validation"].times == 1 + num_steps // 30 + (num_steps % 30 > 0)
    assert by_name["preparation"].times == 1
    assert all(phase.seconds > 0 for phase in found.phases)
    assert found.total_s == pytest.approx(sum(phase.seconds * (phase.times or 0) for phase in found.phases))
    assert found.resume_difference == 0
    assert found.plan is not None
    assert found.peak_bytes > found.checkpoint_bytes > 0
    assert list(runs.iterdir()) == []
    steps = [report.step for report in observer.of("stepped")]
    assert steps == [0, 1, 2, 3, 2, 3], "four steps, and the last two again"
    assert all(loss is not None for _, loss, _ in observer.of("validated"))
    assert len(observer.of("validated")) == 3, "before the first step, and after the last one of both"
    text = str(found)
    assert "resumed from its checkpoint" in text
    assert "the same losses" in text
    assert "memory: estimated " in text
    assert not [text for text in observer.of("warning") if text.startswith("Losses after a resume")]


def test_a_resume_that_is_not_the_same_is_noticed(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(step: TrainingStep, checkpoint: Checkpoint) -> None:
        """Goes on with the weights of the base."""

    monkeypatch.setattr("foretune.training.train.restore", forget)
    observer = Recording()
    found = ft.rehearse(asked(tiny_pipeline, tmp_path), {"optimizer.lr": 0.1}, runs=tmp_path, observer=observer)
    assert found.resume_difference > 1e-3
    assert any(text.startswith("Losses after a resume differ by ") for text in observer.of("warning"))


def test_a_phase_that_fails_is_the_end_of_it(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: CheckpointStore, checkpoint: Checkpoint) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointStore, "write", full)
    with pytest.raises(ft.RunFailed, match="No space left on device") as failure:
        ft.rehearse(asked(tiny_pipeline, tmp_path), runs=tmp_path)
    assert failure.value.run.path.is_dir(), "its record says why"


def test_mistakes_are_reported_and_leave_nothing(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    with pytest.raises(ft.UserError, match=r"optimizer\.lrr"):
        ft.rehearse(asked(tiny_pipeline, tmp_path), {"optimizer.lrr": 1}, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_processes_of_a_launcher_do_not_rehearse(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match="a launcher has started these"):
        ft.rehearse(asked(tiny_pipeline, tmp_path), runs=tmp_path)


def test_steps_are_of_the_largest_bucket_and_epochs_of_all(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, size in enumerate([(64, 64)] * 2 + [(112, 32)] * 6):
        Image.new("RGB", size, (30 * number, 0, 0)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("an image")
    data = {"kind": "folder", "path": str(folder), "cache_dir": str(tmp_path / "cache"), "held_out": 0}
    buckets = {"resolution": 64, "max_buckets": 2, "bucket_step_px": 16}
    sections: dict[str, Any] = {"data": {**data, **buckets}, "train": {"steps": None, "epochs": 3}}
    asked, observer = short_mapping(tiny_pipeline("flux"), tmp_path, **sections), Recording()
    found = ft.rehearse(asked, {"train.batch_size": 1}, runs=tmp_path / "runs", observer=observer)
    steps = next(phase for phase in found.phases if phase.name == "step")
    assert steps.times == 3 * 8
    # A square of 64 px has more pixels than 112 x 32, so that only the two squares are encoded.
    assert any(text.startswith("Images: 2 encoded") for text in observer.of("message"))


def test_time_decides(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    found = ft.rehearse(
        asked(tiny_pipeline, tmp_path), {"train.epochs": None, "train.seconds": 30}, runs=tmp_path / "runs"
    )
    assert found.total_s is None
    assert "until the time is up" in str(found)
