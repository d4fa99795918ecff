"""`foretune init`: a file to start from, which is right from the start."""

import json
from pathlib import Path

import pytest

from foretune.choices.method import METHODS
from foretune.config import Asked, read_experiment
from foretune.config.starting import starting_text
from tests.cli.conftest import Foretune


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def read_file(name: str = "experiment.yaml") -> Asked:
        return read_experiment(Path(name))

    return read_file


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(
    ("model", "resolution"), [("ddpm-cifar10", 32), ("sd3.5-medium", 1024), ("flux.1-dev", 1024), ("a/b@v1", 1024)]
)
def test_a_file_reads_back(foretune: Foretune, read, model: str, method: str, resolution: int) -> None:
    answer = foretune("init", "x.yaml", "--model", model, "--method", method)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == "Wrote x.yaml. Next: foretune train x.yaml\n"
    experiment = read("x.yaml").experiment
    assert (experiment.name, experiment.model, experiment.method.kind) == ("x", model, method)
    assert (experiment.data.kind, experiment.data.resolution) == ("shapes", resolution)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_begun_with(read, tmp_path: Path, method: str) -> None:
    Path("x.yaml").write_text(starting_text("x.yaml", "flux.1-dev", method, None, family="flux"))
    experiment = read("x.yaml").experiment
    assert experiment.method == METHODS[method](), "what is written is the default, so that it can be changed there"
    assert experiment.optimizer.lr == (1e-5 if method == "full" else 1e-4)


def test_without_arguments(foretune: Foretune, read) -> None:
    assert foretune("init").returncode == 0
    asked = read()
    assert (asked.experiment.model, asked.experiment.method.kind, asked.warnings) == ("flux.1-dev", "lora", ())


def test_a_distilled_base_is_warned_about(foretune: Foretune, read) -> None:
    answer = foretune("init", "x.yaml", "-m", "flux.1-schnell")
    assert answer.returncode == 0
    assert answer.stderr.startswith("Warning: the base is distilled")
    assert read("x.yaml").experiment.model == "flux.1-schnell"


def test_full_fine_tuning_of_a_distilled_base_is_refused_and_leaves_no_file(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune("init", "x.yaml", "-m", "flux.1-schnell", "--method", "full")
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: This request has 1 mistake:\n  1. method.kind: full fine-tuning")
    assert list(tmp_path.iterdir()) == []


def test_a_local_folder(foretune: Foretune, read, tmp_path: Path) -> None:
    folder = tmp_path / "my models" / "tiny flux"
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    (folder / "transformer" / "config.json").write_text(json.dumps({"guidance_embeds": True}))
    assert foretune("init", "x.yaml", "-m", "./my models/tiny flux").returncode == 0
    asked = read("x.yaml")
    assert (asked.model.kind, asked.model.family) == ("folder", "flux")


@pytest.mark.parametrize("data", ["./paintings", "/data/my paintings", "2024", "true", 'with "quotes": and \\', "ü#1"])
def test_a_data_folder_stays_what_was_typed(foretune: Foretune, read, data: str) -> None:
    assert foretune("init", "x.yaml", "--data", data).returncode == 0
    experiment = read("x.yaml").experiment
    assert (experiment.data.kind, experiment.data.path) == ("folder", data)


def test_a_data_folder_that_is_not_there_is_warned_about(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune("init", "x.yaml", "-d", "paintings")
    assert answer.returncode == 0
    assert answer.stderr == (
        f"Warning: paintings does not exist (looked for {tmp_path / 'paintings'}). Put your images there before you "
        "train, or change data.path in x.yaml.\n"
    )
    of_clips = foretune("init", "clips.yaml", "-d", "films", "--model", "wan2.1-t2v-1.3b").stderr
    assert "Put your clips there before you train, or change data.path in clips.yaml." in of_clips
    (tmp_path / "paintings").mkdir()
    assert foretune("init", "y.yaml", "-d", "paintings").stderr == ""
    assert "is a file, not a folder" in foretune("init", "z.yaml", "-d", "x.yaml").stderr


def test_a_file_that_exists_is_not_overwritten(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("mine")
    answer = foretune("init", "x.yaml")
    assert answer.returncode == 2
    assert answer.stderr == "Error: x.yaml exists already. Run: foretune init x.yaml --force, or choose another name\n"
    assert (tmp_path / "x.yaml").read_text() == "mine"


def test_force_overwrites_but_not_with_something_wrong(foretune: Foretune, read, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("mine")
    assert foretune("init", "x.yaml", "--force", "-m", "flux.2-dev").returncode == 2
    assert (tmp_path / "x.yaml").read_text() == "mine"
    assert foretune("init", "x.yaml", "--force").returncode == 0
    assert read("x.yaml").experiment.model == "flux.1-dev"


def test_folders_on_the_way_are_made(foretune: Foretune, read) -> None:
    assert foretune("init", "experiments/first/x.yaml").returncode == 0
    assert read("experiments/first/x.yaml").experiment.name == "x"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-m", "flux.1-def"), "There is no model in the catalogue named 'flux.1-def'. Did you mean 'flux.1-dev'?"),
        (("--method", "loar"), "There is no method named 'loar'. Did you mean 'lora'?"),
        (("-m", "./nowhere"), "The model folder ./nowhere does not exist. Run: foretune list models"),
        (
            ("-m", "flux.2-dev"),
            "models of the family 'flux2' cannot be trained yet. Trainable: chroma, ddpm, flux, hunyuan_video, ",
        ),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    foretune: Foretune, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    answer = foretune("init", "x.yaml", *arguments)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []
