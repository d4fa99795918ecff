"""Evaluations read from run directories, and the sentence that they make."""

from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.evaluations import (
    EVALUATION_FILE,
    better_in,
    evaluation_of,
    pictures_of,
    quality_finding,
    worse_in,
)
from foretune.core.values import Evaluation, Score, ScoreDifference, WrongFormat
from foretune.core.values.evaluation import QualityAnswer


def difference(metric: str, answer: QualityAnswer, value: float = 0.5) -> ScoreDifference:
    return ScoreDifference(
        metric=metric, difference=value, low=None, high=None, confidence=0.99, answer=answer, num_pairs=9
    )


def made(*differences: ScoreDifference, **fields: Any) -> Evaluation:
    scores = tuple(
        Score(metric=one.metric, unit="dB" if one.metric == "psnr" else "", higher_is_better=True, column="run")
        for one in differences
    )
    known = {
        "evaluation_id": "e",
        "subject": "half the steps",
        "base": "all steps",
        "run_id": "run-1",
        "model": "m",
        "settings": {"steps": 8, "base_steps": 8},
        "environment_hash": "h",
        "images_per_s": 2.0,
        "base_images_per_s": 1.0,
    }
    return Evaluation(scores=scores, differences=differences, **{**known, **fields})


def test_it_is_read_from_a_run_directory(tmp_path: Path) -> None:
    assert evaluation_of(tmp_path) is None
    evaluation = made(difference("psnr", "worse"), pictures=("base.png", "gone.png"))
    path = tmp_path / EVALUATION_FILE
    path.parent.mkdir()
    path.write_text(evaluation.to_json())
    (path.parent / "base.png").write_bytes(b"")
    assert evaluation_of(tmp_path) == evaluation
    assert pictures_of(tmp_path, evaluation) == (path.parent / "base.png",)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / EVALUATION_FILE
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(WrongFormat, match=r"evaluation\.json: This Evaluation is not JSON"):
        evaluation_of(tmp_path)


@pytest.mark.parametrize("images_per_s", [0.5, 1.21, 2.0])
def test_speed_that_was_measured_once_is_no_answer(images_per_s: float) -> None:
    """A measurement of seconds on a busy machine is off by a factor of two."""
    for settings in ({"steps": 8, "base_steps": 8}, {"steps": 4, "base_steps": 8}):
        evaluation = made(difference("psnr", "worse", -1.25), images_per_s=images_per_s, settings=settings)
        assert "fast" not in quality_finding(evaluation).sentence


def test_another_number_of_steps_is_said() -> None:
    evaluation = made(difference("psnr", "worse", -1.25), settings={"steps": 4, "base_steps": 8})
    assert quality_finding(evaluation).sentence == (
        "half the steps (4 denoising steps instead of 8) is worse in psnr (-1.2 dB) than all steps."
    )
    assert quality_finding(evaluation).evidence == ("run-1",)


@pytest.mark.parametrize(
    ("differences", "sentence"),
    [
        ((difference("style", "better"),), "half the steps is better in style (+0.5) than all steps."),
        (
            (difference("style", "better"), difference("psnr", "worse", -1.0)),
            "half the steps is worse in psnr (-1 dB) and better in style (+0.5) than all steps.",
        ),
        ((difference("style", "inconclusive"),), "half the steps is not shown to differ in quality from all steps."),
        (
            (difference("style", "no difference shown"),),
            "half the steps is not different in quality by more than the threshold from all steps.",
        ),
    ],
)
def test_what_was_shown_is_said(differences: tuple[ScoreDifference, ...], sentence: str) -> None:
    evaluation = made(*differences)
    assert quality_finding(evaluation).sentence == sentence
    assert {*better_in(evaluation), *worse_in(evaluation)} <= set(differences)


def test_a_run_of_too_few_steps_is_called_neither_better_nor_worse() -> None:
    found = quality_finding(made(difference("style", "better")), "not enough steps: 4 of 50")
    assert found.sentence == "Not enough steps: 4 of 50. Do not read the differences as better or worse."
    assert found.evidence == ("run-1",)


def test_without_a_base_nothing_is_compared() -> None:
    alone = made(base=None, base_images_per_s=None)
    assert "alone" in quality_finding(alone).sentence
    assert quality_finding(made(warnings=("two prompts only",))).caveat == "two prompts only"
