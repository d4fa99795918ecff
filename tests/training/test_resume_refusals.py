"""A run goes on only as the same run: on the same data, from the same base."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from foretune.core.errors import UserError
from foretune.models.tiny import write_tiny_pipeline
from foretune.record.run_directory import RunDirectory
from foretune.training.loop import Loop
from foretune.training.train import resume
from tests.training.short_runs import Recording, short_run

TinyPipeline = Callable[..., Path]


@pytest.fixture
def stopped_run(tmp_path: Path) -> RunDirectory:
    """A LoRA run on a model and images of its own, asked to stop after its first step."""
    model = write_tiny_pipeline("ddpm", tmp_path / "model")
    images = tmp_path / "images" / "train"
    images.mkdir(parents=True)
    for index in range(8):
        Image.new("RGB", (32, 32), (index * 30, 0, 0)).save(images / f"{index + 1}.png")
    data = {"kind": "cifar10", "path": str(images.parent), "held_out": 0.2}
    stops = Recording(lambda done: signal.raise_signal(signal.SIGTERM) if done == 1 else None)
    trained = short_run(model, tmp_path, data=data, observer=stops)
    assert trained.record.outcome.status == "interrupted"
    return trained.run


def test_it_goes_on_when_nothing_changed(stopped_run: RunDirectory) -> None:
    assert resume(stopped_run, Recording()).record.outcome.status == "finished"
    with pytest.raises(UserError, match=r"has finished its 3 steps\. Next: foretune export"):
        resume(stopped_run, Recording())


def test_it_goes_on_with_the_threads_it_began_with(stopped_run: RunDirectory) -> None:
    """OMP_NUM_THREADS may say something else by now; sums over another number of threads end in other bits."""
    before = torch.get_num_threads()
    assert stopped_run.read_experiment()[2]["num_threads"] == before
    try:
        torch.set_num_threads(before + 1)
        assert resume(stopped_run, Recording()).record.environment["torch"]["num_threads"] == before
    finally:
        torch.set_num_threads(before)


def test_other_images(stopped_run: RunDirectory, tmp_path: Path) -> None:
    shutil.copy2(tmp_path / "images" / "train" / "1.png", tmp_path / "images" / "train" / "2.png")
    with pytest.raises(UserError, match=r"The training data of .* changed since it started"):
        resume(stopped_run, Recording())
    assert stopped_run.read_record() is not None, "a refusal leaves the run as it was"


def test_other_base_of_the_same_size(stopped_run: RunDirectory, tmp_path: Path) -> None:
    """One weight of the frozen base moved by one bit: the adapter would go on beside another model."""
    path = tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    flat = weights[name].view(-1)
    flat[0] = torch.nextafter(flat[0], torch.tensor(9.0))
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"The base model of .* changed since it started"):
        resume(stopped_run, Recording())


def test_base_that_is_gone(stopped_run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"The base model of .* is gone"):
        resume(stopped_run, Recording())


def test_another_experiment(stopped_run: RunDirectory) -> None:
    """Its file was edited: the steps that are left would not be those that the run was started for."""
    asked, experiment, effective = stopped_run.read_experiment()
    faster = experiment.model_copy(update={"optimizer": experiment.optimizer.model_copy(update={"lr": 0.5})})
    stopped_run.write_experiment(asked, faster, effective)
    with pytest.raises(UserError, match=r"The experiment of .* changed since it started"):
        resume(stopped_run, Recording())
    assert stopped_run.read_record() is not None, "a refusal leaves the run as it was"


def test_the_same_images_elsewhere(stopped_run: RunDirectory, tmp_path: Path) -> None:
    """A path is not what the run is about: where the data moved, it can be set in the run's file."""
    (tmp_path / "images").rename(tmp_path / "moved")
    asked, experiment, effective = stopped_run.read_experiment()
    moved = experiment.model_copy(update={"data": experiment.data.model_copy(update={"path": str(tmp_path / "moved")})})
    stopped_run.write_experiment(asked, moved, effective)
    assert resume(stopped_run, Recording()).record.outcome.status == "finished"


def test_images_that_are_not_here(stopped_run: RunDirectory, tmp_path: Path) -> None:
    """A relative path counts from where the run was started; the run's own file is the place to fix it."""
    (tmp_path / "images").rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"Put it back, or set the path of `data` in .*experiment\.yaml"):
        resume(stopped_run, Recording())
    asked, experiment, effective = stopped_run.read_experiment()
    relative = experiment.model_copy(update={"data": experiment.data.model_copy(update={"path": "images"})})
    stopped_run.write_experiment(asked, relative, effective)
    with pytest.raises(
        UserError, match=r"reads its data from images, .* Go to the directory that the run was started in"
    ):
        resume(stopped_run, Recording())


def test_checkpoints_that_are_gone(stopped_run: RunDirectory) -> None:
    """What was trained is not thrown away by starting again."""
    shutil.rmtree(stopped_run.checkpoints)
    stopped_run.checkpoints.mkdir()
    with pytest.raises(
        UserError, match=r"checkpoints of .* are gone: its log has a save after step 1, and .* is empty"
    ):
        resume(stopped_run, Recording())
    assert stopped_run.read_record() is not None, "a refusal leaves the run as it was"


def test_a_run_that_failed_while_preparing(stopped_run: RunDirectory) -> None:
    asked, experiment, effective = stopped_run.read_experiment()
    stopped_run.write_experiment(asked, experiment, {"model_folder": effective["model_folder"]})
    with pytest.raises(UserError, match="failed before its first step"):
        resume(stopped_run, Recording())


def test_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        RunDirectory.open(tmp_path)


def test_a_run_that_did_not_reach_a_checkpoint_starts_at_its_first_step(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Loop, first_step: int) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run", crash)
        crashed = short_run(tiny_pipeline("flux"), tmp_path)
    assert crashed.record.outcome.status == "failed"
    assert crashed.record.outcome.steps_done == 0
    recording = Recording()
    assert resume(crashed.run, recording).record.outcome.steps_done == 3
    assert "It was stopped before its first checkpoint: starting again at the first step." in recording.of("message")
