"""`foretune import-checkpoint`: what is printed, and a folder that other commands take."""

from collections.abc import Callable
from pathlib import Path

import torch

from foretune.training.for_tools.single_file import write_single_file
from tests.cli.conftest import Foretune
from tests.training.for_tools.trained_models import trained

TinyPipeline = Callable[..., Path]


def test_a_file_becomes_a_model(foretune: Foretune, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tiny_pipeline("sdxl")
    file, folder = tmp_path / "tuned.safetensors", tmp_path / "tuned"
    write_single_file(trained(base), file, torch.float32, {})
    answer = foretune("import-checkpoint", str(file), "--base", str(base), "--output", str(folder))
    assert answer.returncode == 0, answer.stderr
    first, *_, last = answer.stdout.splitlines()
    assert first.startswith("From the file, in F32: unet (")
    assert last == f"Wrote {folder}. Use it as `model: {folder}`."
    assert foretune("init", str(tmp_path / "e.yaml"), "--model", str(folder)).returncode == 0
    again = foretune("import-checkpoint", str(file), "--base", str(base), "--output", str(folder))
    assert again.returncode == 2
    assert "is not an empty folder. Choose another: --output DIR" in again.stderr


def test_a_base_is_needed(foretune: Foretune, tmp_path: Path) -> None:
    file = tmp_path / "tuned.safetensors"
    file.write_bytes(b"")
    answer = foretune("import-checkpoint", str(file))
    assert answer.returncode == 2
    assert "--base" in answer.stderr
