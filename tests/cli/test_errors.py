"""What a person sees when something is wrong: a sentence, an exit code, no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Foretune

THREE_MISTAKES = """\
model: flux.1-dve
method: {kind: lora, rnak: 8}
data: {kind: shapes}
train: {steps: ten}
"""
RIGHT = "model: flux.1-dev\ndata: {kind: shapes}\ntrain: {steps: 10}\n"


def test_three_mistakes_in_one_go(foretune_process: Foretune, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(THREE_MISTAKES)
    answer = foretune_process("train", "x.yaml")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == (
        "Error: x.yaml has 3 mistakes:\n"
        "  1. method.rnak: unknown key. Did you mean 'rank'?\n"
        "  2. train.steps: should be a whole number (found 'ten')\n"
        "  3. model: There is no model in the catalogue named 'flux.1-dve'. Did you mean 'flux.1-dev'?\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"], "nothing was begun"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["train.precision=fp16", "train.loss_scaling=off"],
            "Nearest: train.loss_scaling=dynamic, or train.precision=bf16",
        ),
        (["model=flux.1-schnell", "method.kind=full"], "accept=[distilled-base]"),
        (["parallel.devices=2", "levers.fused_backward=true"], "Nearest: levers.fused_backward=false"),
        (["parallel.sharding=full"], "Nearest: parallel.sharding=none, or parallel.devices=2"),
        (["model=hidream-i1"], "models of the family 'hidream' cannot be trained yet"),
        (["train.steps"], "'train.steps' is not an override. Write key=value, for example train.steps=100"),
        (["train.steps=[1"], "The value in 'train.steps=[1' cannot be read"),
        (["stesp=5"], "stesp: unknown key."),
    ],
)
def test_what_would_not_work_is_refused_before_it_begins(
    foretune: Foretune, tmp_path: Path, overrides: list[str], said: str
) -> None:
    (tmp_path / "x.yaml").write_text(RIGHT)
    answer = foretune("train", "x.yaml", *overrides)
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: ")
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "Error: x.yaml does not exist. Run: foretune init x.yaml\n"),
        ("", "Error: x.yaml should hold keys and values, such as `model: flux.1-dev`. Run: foretune init --help\n"),
        ("a: b: c", "Error: x.yaml cannot be read as YAML: line 1, column 5: mapping values are not allowed here\n"),
        (
            RIGHT + "model: b\n",
            "Error: x.yaml cannot be read as YAML: line 4, column 1: the key 'model' stands twice\n",
        ),
    ],
)
def test_a_file_that_cannot_be_read(foretune: Foretune, tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "x.yaml").write_text(content)
    answer = foretune("train", "x.yaml")
    assert (answer.returncode, answer.stderr) == (2, said)


@pytest.mark.parametrize("verb", ["train", "resume", "export", "tiny"])
def test_a_verb_without_what_it_needs(foretune: Foretune, verb: str) -> None:
    answer = foretune(verb)
    assert answer.returncode == 2
    assert f"Usage: foretune {verb} " in answer.stderr
    assert "Missing" in answer.stderr


def test_an_unknown_option(foretune: Foretune) -> None:
    answer = foretune("list", "models", "--jsno")
    assert answer.returncode == 2
    assert "No such option: --jsno" in answer.stderr
    assert "--json" in answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "x.yaml", "--runs", "x.yaml/runs"),
        ("sample", "--base", "foretune-shapes", "--output", "x.yaml/samples.png"),
        ("evaluate", "foretune-shapes", "--output", "x.yaml/quality"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_computed(
    foretune: Foretune, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "x.yaml").write_text(RIGHT)
    answer = foretune(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == (
        f"Error: {arguments[-1]} cannot be written: {tmp_path / 'x.yaml'} is a file, not a folder. "
        "Choose another place.\n"
    )


def test_what_the_disk_refuses_is_a_sentence(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(RIGHT)
    answer = foretune("tiny", "ddpm", "x.yaml/model")
    assert answer.returncode == 2
    assert answer.stderr == "Error: x.yaml/model cannot be read or written: Not a directory. Choose another place.\n"


def test_ctrl_c_before_the_first_step_says_what_there_is(
    foretune: Foretune, tmp_path: Path, tiny_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("foretune.training.train.prepare", interrupted)
    (tmp_path / "x.yaml").write_text(f"model: {tiny_pipeline('ddpm')}\ndata: {{kind: shapes}}\ntrain: {{steps: 1}}\n")
    answer = foretune("train", "x.yaml")
    assert answer.returncode == 130
    assert answer.stderr.endswith(
        "Interrupted. No step was made. Encoded samples are kept: the same command continues.\n"
    )
    assert not (tmp_path / "runs").exists()


def test_of_several_processes_each_names_itself(foretune: Foretune, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of them may have failed, and all write to the same terminal."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, start in (("0", "Error: "), ("1", "Error in process 1: ")):
        monkeypatch.setenv("RANK", rank)
        answer = foretune("train", "nothing.yaml")
        assert answer.returncode == 2
        assert answer.stderr.startswith(start)
