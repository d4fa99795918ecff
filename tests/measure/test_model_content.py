"""The content of a model changes with its checkpoint, its commit or its files, and not with where it lies."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.measure import model_content
from foretune.measure.model_content import file_contents

TinyPipeline = Callable[..., Path]


def test_a_run_that_is_trained_further(tmp_path: Path) -> None:
    run = tmp_path / "20260101-000000-aa"
    run.mkdir()
    (run / "experiment.yaml").write_text("model: m")
    assert model_content.model_content(str(run)) == {"run": run.name, "step": None}
    for step in (4, 12):
        (run / "checkpoints" / f"step-{step:09d}").mkdir(parents=True)
        assert model_content.model_content(str(run)) == {"run": run.name, "step": step}
    (tmp_path / "latest").symlink_to(run)
    assert model_content.model_content(str(tmp_path / "latest"))["run"] == run.name


def test_a_branch_that_moves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for commit in ("abc", "def"):
        monkeypatch.setattr(model_content, "locate", lambda _, commit=commit: (tmp_path, commit))
        assert model_content.model_content("me/model") == {"revision": commit}


def test_a_folder_that_is_written_again(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_pipeline("ddpm"), tmp_path / "model")
    before = model_content.model_content(str(folder))
    assert model_content.model_content(str(folder)) == before
    weights = next(folder.glob("unet/*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert model_content.model_content(str(folder)) != before


@pytest.mark.parametrize("most_hashed_bytes", [0, 10])
def test_an_adapter_with_other_weights(most_hashed_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_content, "_MOST_HASHED_BYTES", most_hashed_bytes)
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"123")
    before = file_contents(file)
    assert file_contents(tmp_path) == before
    assert list(before) == ["a.safetensors"]
    file.write_bytes(b"1234" if most_hashed_bytes == 0 else b"124")
    assert file_contents(file) != before
