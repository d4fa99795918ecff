"""What can be evaluated is known before anything is imported or downloaded."""

from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.quality.naming import check_subject


@pytest.mark.parametrize("asked", ["runs/nowhere", "runs/mine/nowhere", "./nowhere"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        check_subject(asked)


@pytest.mark.parametrize("asked", ["someone/something", "stabilityai/stable-diffusion-xl-base-1.0", "sdxl-unet"])
def test_models_are_left_to_the_hub(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stabilityai").mkdir()
    monkeypatch.chdir(tmp_path)
    check_subject(asked)
