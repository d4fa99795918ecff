"""An evaluation from a run directory to its file: columns, absences, pictures, and what is kept between runs."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foretune.analyse.evaluations import evaluation_of, pictures_of
from foretune.core.errors import Refused, UnknownName, UserError
from foretune.core.observer import Observer
from foretune.core.values import Evaluation
from foretune.quality.evaluating import evaluate_run, evaluate_runs
from foretune.quality.metrics import METRICS
from foretune.quality.request import EvaluationRequest
from tests.training.short_runs import Recording, short_run

SMALL = EvaluationRequest(num_prompts=4, num_seeds=2, num_inference_steps=2, num_held_out=3)
DATA = {"num_samples": 60, "style": "hollow"}


@pytest.fixture(scope="module")
def run(tiny_pipeline: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of a few steps, large enough to change the images."""
    work = tmp_path_factory.mktemp("run")
    return short_run(tiny_pipeline("flux"), work, data=DATA, optimizer={"lr": 0.02}).run.path


@pytest.fixture(scope="module")
def heard() -> Recording:
    return Recording()


@pytest.fixture(scope="module")
def evaluation(run: Path, heard: Recording) -> Evaluation:
    return evaluate_run(run, SMALL, heard)


def test_every_metric_is_there_or_absent_with_a_reason(evaluation: Evaluation) -> None:
    found = {score.metric: score for score in evaluation.scores if score.column == "run"}
    for name, score in found.items():
        assert (score.value is None) == (score.why_absent is not None), name
        assert score.value is None or score.num_values > 0, name
    assert {"caption accuracy", "style", "held-out loss", "psnr", "ssim", "drift psnr", "diversity"} <= {
        name for name, score in found.items() if score.value is not None
    }
    assert {"fid", "kid", "clip", "lpips", "ms-ssim", "memorisation"} == {
        name for name, score in found.items() if score.value is None
    }


def test_scores_rest_on_prompts_not_on_images(evaluation: Evaluation) -> None:
    score = evaluation.score("caption accuracy")
    assert score is not None
    assert (score.num_values, score.repeats_over, len(score.raw)) == (4, "prompts", 4)
    loss = evaluation.score("held-out loss")
    assert loss is not None
    assert (loss.num_values, loss.repeats_over) == (3, "held-out images")
    assert loss.bands is not None
    assert next(iter(loss.bands)) == "noise 0.00 to 0.20"
    assert len(loss.bands) == 5
    assert loss.value == pytest.approx(sum(loss.bands.values()) / 5)


def test_the_base_is_column_zero_and_drift_has_one_column(evaluation: Evaluation) -> None:
    assert evaluation.scores[0].column == "base"
    assert evaluation.score("drift psnr", "base") is None
    assert {difference.metric for difference in evaluation.differences} == {
        "caption accuracy",
        "style",
        "clean drawing",
        "held-out loss",
        "psnr",
        "ssim",
    }
    # Six at once: each at 1 - 0.05 / 6.
    assert all(difference.confidence == pytest.approx(1 - 0.05 / 6) for difference in evaluation.differences)


def test_the_held_out_loss_is_that_of_training(evaluation: Evaluation, run: Path) -> None:
    """Both ask the base the same question with other noise: they agree to within what noise leaves open."""
    validated = json.loads((run / "record.json").read_text())["measured"]["held_out_losses"][0][1]
    loss = evaluation.score("held-out loss", "base")
    assert loss is not None
    assert loss.value == pytest.approx(validated, rel=0.3)


def test_it_is_kept_in_the_run_directory(evaluation: Evaluation, run: Path) -> None:
    assert evaluation_of(run) == evaluation
    pictures = pictures_of(run, evaluation)
    assert [path.name for path in pictures] == ["base.png", "run.png", "before-and-after.png"]
    sizes = [Image.open(path).size for path in pictures]
    # Four rows of 96 px, two seeds or two columns, 4 px between.
    assert sizes == [(196, 396)] * 3
    assert pictures[0].read_bytes() != pictures[1].read_bytes()


def test_progress_is_reported(evaluation: Evaluation, heard: Recording) -> None:
    assert evaluation.wall_s is not None
    reported = {what for what, _, _ in heard.of("preparing")}
    assert {"sampling, base", "sampling, run", "held-out losses, base", "noising and denoising, run"} <= reported


def test_prompts_are_captions_that_are_never_trained_on(evaluation: Evaluation) -> None:
    from foretune.data.sources.shapes import captions_shown

    prompts = evaluation.settings["prompts"]
    assert len(set(prompts)) == 4
    assert set(prompts) <= set(captions_shown("unseen"))


def test_the_same_is_found_again_and_the_base_is_sampled_once(evaluation: Evaluation, run: Path) -> None:
    heard = Recording()
    again = evaluate_runs((run, run), dataclasses.replace(SMALL, metrics=("drift", "diversity")), heard)
    kept = [score for score in evaluation.scores if score.metric.startswith(("drift", "diversity"))]
    assert [sorted(one.scores, key=str) for one in again] == [sorted(kept, key=str)] * 2
    assert [one.evaluation_id for one in again] == [evaluation.evaluation_id] * 2
    starts = [what for what, done, total in heard.of("preparing") if what.startswith("sampling") and done == total]
    assert starts == ["sampling, base", "sampling, run", "sampling, run"]


def test_a_run_beside_itself_differs_in_nothing(run: Path, tmp_path: Path) -> None:
    request = dataclasses.replace(SMALL, against=str(run), output=tmp_path / "q", metrics=("loss", "psnr", "drift"))
    found = evaluate_run(run, request, Observer())
    assert found.base == found.subject
    assert [(d.difference, d.answer) for d in found.differences] == [(0.0, "no difference shown")] * 2
    drift = found.score("drift psnr")
    assert drift is not None
    assert drift.value == 100
    assert (tmp_path / "q" / "evaluation.json").is_file()


def test_a_folder_is_evaluated_against_another(run: Path, tiny_pipeline: Callable[..., Path], tmp_path: Path) -> None:
    model = str(tiny_pipeline("flux"))
    request = dataclasses.replace(
        SMALL, prompts=("a small red circle on blue", "a harbour"), against=str(run), output=tmp_path, size_px=32
    )
    with pytest.raises(UserError, match="--output quality"):
        evaluate_run(model, dataclasses.replace(request, output=None), Observer())
    # Where the base is the only run, its data count.
    found = evaluate_run(model, dataclasses.replace(request, metrics=("loss", "diversity")), Observer())
    assert found.difference("held-out loss") is not None
    assert (found.run_id, found.base) == (None, "short (lora)")
    assert found.warnings == ("2 prompts only: intervals are wide, however many seeds there are",)
    with pytest.raises(Refused, match=r"loss: .*Evaluate a run"):
        evaluate_run(model, dataclasses.replace(request, against=model, metrics=("loss",)), Observer())


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"metrics": ("fid",)}, Refused, r"fid: FID of 8 images.*--seeds 250.*--metrics kid"),
        ({"metrics": ("fid", "clip")}, Refused, r"(?s)fid: .*clip: "),
        ({"metrics": ("pnsr",)}, UnknownName, "Did you mean 'psnr'"),
        ({"size_px": 33}, Refused, r"The size 33 px is not a multiple of \d+ px.*Nearest: 32"),
        ({"metrics": ("captions",), "prompts": ("a harbour",)}, Refused, "'a harbour' is not a caption of shapes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sampled(
    run: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    heard = Recording()
    with pytest.raises(error, match=said):
        evaluate_run(run, dataclasses.replace(SMALL, **changes), heard)
    assert not [what for what, _, _ in heard.of("preparing") if what.startswith("sampling")]


def test_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a run directory"):
        evaluate_run(tmp_path, SMALL, Observer())
    with pytest.raises(UserError, match=r"runs/mine/latest does not exist\. A run's path has the form"):
        evaluate_run(Path("runs/mine/latest"), SMALL, Observer())


def test_another_family_is_refused(run: Path, tiny_pipeline: Callable[..., Path]) -> None:
    with pytest.raises(Refused, match=r"is a flux model and .* a sd3 model"):
        evaluate_run(run, dataclasses.replace(SMALL, against=str(tiny_pipeline("sd3"))), Observer())


def test_a_model_without_text_is_evaluated(tiny_pipeline: Callable[..., Path], tmp_path: Path) -> None:
    run = short_run(tiny_pipeline("ddpm"), tmp_path, "full", data={"max_text_tokens": None}, train={"steps": 1}).run
    with pytest.raises(Refused, match="captions: the model takes no text"):
        evaluate_run(run.path, dataclasses.replace(SMALL, metrics=("captions",)), Observer())
    found = evaluate_run(run.path, dataclasses.replace(SMALL, num_held_out=1, metrics=("loss", "psnr")), Observer())
    psnr = found.score("psnr")
    assert psnr is not None
    assert psnr.value is not None
    loss = found.score("held-out loss")
    assert loss is not None
    assert loss.bands is not None
    assert next(iter(loss.bands)) == "noise 0 to 200"


def test_every_listed_metric_can_be_made() -> None:
    for name in METRICS:
        assert METRICS[name]().needs


def test_clips_are_compared_frame_by_frame_and_by_their_motion(
    tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    video = {"num_samples": 60, "resolution": "32x32", "num_frames": 5}
    run = short_run(tiny_pipeline("wan"), tmp_path, data=video, optimizer={"lr": 0.02}).run.path
    found = {score.metric: score for score in evaluate_run(run, SMALL, Observer()).scores if score.column == "run"}
    measured = {name for name, score in found.items() if score.value is not None}
    assert {"held-out loss", "psnr", "ssim", "drift psnr", "diversity", "motion", "flicker"} <= measured
    for name in ("captions", "style", "drawing", "clip", "kid", "fid"):
        assert found[name].why_absent == "it is defined for images, and the model makes clips", name
    # Drawn shapes move evenly; the samples of a model that is hardly trained do not.
    bands = found["flicker"].bands
    assert bands is not None
    assert 0 < bands["held-out clips"] < (found["flicker"].value or 0)
    assert (run / "quality" / "run.png").is_file()


def test_models_that_continue_a_first_frame_are_refused(tiny_pipeline: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(Refused, match="this model continues a given first frame"):
        evaluate_run(tiny_pipeline("wan", "2.1-i2v"), dataclasses.replace(SMALL, output=tmp_path), Observer())
