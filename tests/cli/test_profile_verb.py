"""`foretune profile` on a run that has a trace, without torch in the way, and on one that has none."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Foretune
from tests.training.short_runs import short_run


def test_a_run_with_a_trace_is_told_in_tables_and_words(
    foretune: Foretune, tmp_path: Path, tiny_pipeline: Callable[..., Path]
) -> None:
    trained = short_run(tiny_pipeline("flux"), tmp_path, train={"steps": 4}, profile={"at_step": 3, "steps": 2})
    answer = foretune("profile", str(trained.run.path))
    assert answer.returncode == 0, answer.stderr
    text = answer.stdout
    for heading in ("longest operators", "phase", "block", "Of a step: input", "Peak of tensors", "Trace: "):
        assert heading in text
    assert "2 steps of" in text
    assert "transformer_blocks.0" in text
    assert re.search(r"^(Healthy|Input-bound|Host-bound): ", text, re.MULTILINE)
    assert (trained.run.profile / "profile.png").is_file() or "No plot" in text


def test_a_run_without_one_is_told_how_to_get_one(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune("profile", str(tmp_path))
    assert answer.returncode == 2
    assert "has no trace" in answer.stderr
    assert "foretune profile experiment.yaml" in answer.stderr


@pytest.mark.parametrize("option", [("--data", "photos"), ("--steps", "9"), ("train.batch_size=4",)])
def test_what_would_be_ignored_for_a_run_is_refused(
    option: tuple[str, ...], foretune: Foretune, tmp_path: Path
) -> None:
    answer = foretune("profile", str(tmp_path), *option)
    assert answer.returncode == 2
    assert "goes with an experiment or a model" in answer.stderr
