"""One command reports all of its mistakes, whichever stage finds them."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from foretune.core import extras
from tests.cli.conftest import Answer, Foretune

FILE = """\
model: flux.1-dev
method: {kind: lora, start_from: ./nowhere, training_adapter: ./neither}
data: {kind: folder, path: ./no-images}
train: {steps: 10, bath_size: 2}
track: [wandb, mlflow]
"""


def problems(answer: Answer) -> list[str]:
    """The numbered lines of an answer that refuses a command."""
    assert answer.returncode == 2
    assert answer.stdout == ""
    head, *lines = answer.stderr.splitlines()
    assert head == f"Error: This command has {len(lines)} mistakes:"
    return [re.sub(r"^  \d+\. ", "", line) for line in lines]


@pytest.fixture
def without_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in ("wandb", "mlflow") else find_spec(name))


@pytest.mark.usefixtures("without_trackers")
@pytest.mark.skipif(torch.backends.mps.is_available(), reason="the absent device is there")
def test_of_a_training(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FILE)
    found = problems(foretune("train", "x.yaml", "train.seed", "parallel.device=mps", "--runs", "x.yaml/runs"))
    beginnings = [
        "'train.seed' is not an override. Write key=value",
        "x.yaml: train.bath_size: unknown key. Did you mean 'batch_size'?",
        f"x.yaml: data.path: there is no folder ./no-images (looked for {tmp_path / 'no-images'}).",
        "x.yaml: method.start_from: nowhere is neither a repository of the Hub nor a folder with an adapter in it",
        "x.yaml: method.training_adapter: neither is neither a repository of the Hub nor a folder with an adapter",
        "x.yaml: track: [wandb, mlflow] needs packages that are not installed.",
        "parallel.device: there is no mps device here.",
        f"x.yaml/runs cannot be written: {tmp_path / 'x.yaml'} is a file, not a folder.",
    ]
    assert len(found) == len(beginnings)
    for problem, beginning in zip(found, beginnings, strict=True):
        assert problem.startswith(beginning)
    assert "foretune export RUN --output nowhere" in found[3]
    assert "pip install 'foretune[wandb,mlflow]'" in found[5]
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"], "nothing was begun"


def test_a_mistake_on_the_command_line_is_not_the_files(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("model: foretune-shapes\ndata: {kind: shapes}\ntrain: {steps: 10}\n")
    answer = foretune("train", "x.yaml", "train.bath_size=2")
    assert answer.stderr.splitlines() == [
        "Error: This command has 1 mistake:",
        "  1. train.bath_size: unknown key. Did you mean 'batch_size'?",
    ]


@pytest.mark.usefixtures("without_trackers")
def test_a_bench_asks_for_no_tracker_and_synthetic_data_for_no_folder(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FILE)
    assert len(problems(foretune("bench", "x.yaml", "oops"))) == 5
    assert len(problems(foretune("bench", "x.yaml", "oops", "--synthetic"))) == 4


def test_of_two_files_that_are_measured(foretune: Foretune, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(FILE.replace("bath_size", f"{name}_size"))
    found = problems(foretune("compare", "--run", "a.yaml", "b.yaml", "--synthetic"))
    assert {problem.partition(":")[0] for problem in found} == {"a.yaml", "b.yaml"}


def test_of_a_plan(foretune: Foretune) -> None:
    arguments = ("flux.1-dve", "train.steps", "train.bath_size=2", "--on", "xyz,l4,rtx-4091", "--ram", "much")
    found = problems(foretune("plan", *arguments))
    beginnings = [
        "There is no device named 'xyz'.",
        "There is no device named 'rtx-4091'. Did you mean 'rtx-4090'?",
        "much is not an amount of memory.",
        "There is no model in the catalogue named 'flux.1-dve'. Did you mean 'flux.1-dev'?",
        "'train.steps' is not an override.",
        "train.bath_size: unknown key. Did you mean 'batch_size'?",
    ]
    assert len(found) == len(beginnings)
    for problem, beginning in zip(found, beginnings, strict=True):
        assert problem.startswith(beginning)


def test_of_a_plan_of_a_file_that_is_not_there(foretune: Foretune) -> None:
    found = problems(foretune("plan", "nowhere.yaml", "train.steps", "--on", "xyz"))
    assert [problem.split(" ")[-1] for problem in found[1:2]] == ["nowhere.yaml"]
    assert len(found) == 3


def test_of_a_plan_of_all_models(foretune: Foretune) -> None:
    assert len(problems(foretune("plan", "all", "train.steps", "seed=", "--on", "xyz"))) == 2


def test_a_single_mistake_is_reported_as_it_is(foretune: Foretune) -> None:
    answer = foretune("plan", "flux", "--on", "l4")
    assert answer.stderr.startswith("Error: 'flux' fits 3 models: ")
    assert "  foretune plan flux.1-dev --on l4" in answer.stderr.splitlines()
