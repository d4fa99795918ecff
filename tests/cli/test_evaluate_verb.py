"""`foretune evaluate` as it is typed: the table, the reasons, plain data, and mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.core.values import Evaluation, Score
from foretune.reports.terminal.evaluation import print_evaluation
from tests.cli.conftest import Foretune
from tests.core.formats import frozen_file
from tests.training.short_runs import short_run

QUICK = ("--num-prompts", "3", "--seeds", "2", "--steps", "2", "--held-out", "3")


@pytest.fixture(scope="module")
def run(tiny_pipeline: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("run")
    return short_run(tiny_pipeline("flux"), work, train={"steps": 1}).run.path


def test_the_table_names_columns_answers_and_absences(capsys: pytest.CaptureFixture[str]) -> None:
    print_evaluation(Evaluation.from_json(frozen_file("Evaluation", 1).read_text()), Path("run/quality"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run: lora rank 8; base: ./tiny-flux"
    heading = next(line for line in lines if line.startswith("metric"))
    assert heading.split()[:3] == ["metric", "base", "run"]
    assert "99 % interval" in heading
    accuracy = next(line for line in lines if line.startswith("caption accuracy (higher is better)"))
    assert accuracy.split()[-3:] == ["worse", "4", "prompts"]
    assert "-0.25" in accuracy
    assert "-0.40 to -0.10" in accuracy
    speed = "speed 7.1 images/s 14.2 images/s measured once"
    assert any(line.split() == speed.split() for line in lines)
    assert "  held-out loss: 0.0 to 0.2: 0.75; 0.8 to 1.0: 0.25" in lines
    answer = lines.index("lora rank 8 is worse in caption accuracy (-0.25) than ./tiny-flux.")
    assert lines[answer + 1].startswith("Speed was measured once, which says nothing about a difference")
    assert "times as fast" not in "".join(lines)
    assert "! one held-out image only" in lines
    assert lines[-1] == "Wrote run/quality/evaluation.json, and base.png, run.png beside it (3.50 s)."


def test_what_is_absent_is_listed_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = Evaluation.from_json(frozen_file("Evaluation", 1).read_text())
    absent = Score(metric="fid", unit="", higher_is_better=None, column="run", why_absent="too few images")
    alone = evaluation.model_copy(update={"base": None, "scores": (absent,), "differences": ()})
    print_evaluation(alone, Path("q"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("Absent:") + 1] == "  fid: too few images."


def test_plain_data_are_the_file(run: Path, foretune: Foretune, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a small red circle on blue\n\na large white cross on black\n")
    asked = ("--prompts", str(prompts), "--metrics", "captions, diversity", "--json", "--output", "found")
    answer = foretune("evaluate", str(run), *asked, *QUICK[4:])
    evaluation = Evaluation.from_json(answer.stdout)
    assert evaluation.settings["prompts"] == ["a small red circle on blue", "a large white cross on black"]
    assert {score.metric for score in evaluation.scores} == {"caption accuracy", "diversity"}
    assert json.loads(answer.stdout) == json.loads((tmp_path / "found" / "evaluation.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--metrics", "fid"), "would mostly measure how few they are"),
        (("--metrics", "lpps"), "Did you mean 'lpips'"),
        (("--prompts", "none.txt"), "It should hold one prompt a line"),
        (("--against", "./nowhere"), "does not exist"),
        (("--extractor", "resnet"), "there is no such extractor"),
    ],
)
def test_mistakes_end_in_a_sentence(run: Path, foretune: Foretune, arguments: tuple[str, ...], said: str) -> None:
    answer = foretune("evaluate", str(run), *QUICK, *arguments)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_one_folder_is_too_few_for_two_runs(run: Path, foretune: Foretune) -> None:
    answer = foretune("evaluate", str(run), str(run), "--output", "q")
    assert answer.returncode == 2
    assert "several runs" in answer.stderr


def test_a_run_that_was_hardly_trained_is_said_to_be(run: Path, foretune: Foretune) -> None:
    answer = foretune("evaluate", str(run), "--metrics", "diversity", "--output", "few", *QUICK)
    assert answer.returncode == 0
    assert "\nNot enough steps: 1 of 50. Do not read the differences as better or worse.\n" in answer.stdout
    assert " is better in " not in answer.stdout
    assert " is worse in " not in answer.stdout
