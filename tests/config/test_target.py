"""An experiment that begins with a model's name: as in the file of `foretune init`, with every mistake at once."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.api.experiment import init
from foretune.config.reading import read_experiment
from foretune.config.target import read_target
from foretune.core.errors import AmbiguousName, UserError
from tests.docs.command_lines import commands

TinyPipeline = Callable[..., Path]
PAGE = Path(__file__).parents[2] / "docs" / "tune.md"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    return tmp_path


@pytest.mark.parametrize("model", ["flux.1-dev", "sdxl-unet", "ddpm-cifar10", "wan2.1-t2v-1.3b", "foretune-shapes"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_model_is_trained_as_in_the_file_that_init_writes(model: str, method: str) -> None:
    init("written.yaml", model=model, method=method, data="./photos")
    written = read_experiment(Path("written.yaml"), ["name=same", "train.steps=7"])
    named = read_target(model, [f"method.kind={method}", "name=same", "train.steps=7"], data="./photos")
    assert named.experiment == written.experiment
    assert named.model.repo == written.model.repo
    assert (named.is_by_name, written.is_by_name) == (True, False)


def test_the_launch_in_one_line_that_the_page_shows() -> None:
    """The settings of a public benchmark: AMD's, on eight devices."""
    (line,) = [line for line in commands(PAGE.read_text(encoding="utf-8")) if "parallel.devices=8" in line]
    program, verb, model, option, data, *settings = shlex.split(line)
    assert (program, verb, model, option) == ("foretune", "train", "flux.1-dev", "--data")
    asked = read_target(model, settings, data=data)
    found = asked.experiment
    assert (asked.model.kind, asked.model.repo) == ("catalogue", "black-forest-labs/FLUX.1-dev")
    assert (found.name, found.model, found.method.kind) == ("flux.1-dev", "flux.1-dev", "full")
    assert (found.train.precision, found.train.batch_size, found.train.steps) == ("bf16", 10, 1500)
    assert found.samples_per_step() == 80
    assert (found.optimizer.lr, found.optimizer.schedule, found.optimizer.warmup_steps) == (1e-6, "cosine", 150)
    assert found.levers.gradient_checkpointing == 0.5
    assert (found.data.kind, found.data.resolution) == ("folder", "416x240")
    assert (found.parallel.devices, found.parallel.sharding) == (8, "full")


@pytest.mark.parametrize(
    ("typed", "repo", "revision", "name"),
    [
        ("sdxl", "stabilityai/stable-diffusion-xl-base-1.0", None, "sdxl-unet"),
        ("owner/some-model", "owner/some-model", None, "some-model"),
        ("owner/some-model@main", "owner/some-model", "main", "some-model"),
    ],
)
def test_the_repository_that_would_be_downloaded(typed: str, repo: str, revision: str | None, name: str) -> None:
    asked = read_target(typed, data="./photos")
    assert asked.model.repo == repo
    if typed != "sdxl":
        assert asked.model.revision == revision
    assert asked.experiment.name == name


def test_how_a_name_was_understood_is_kept() -> None:
    assert read_target("sdxl", data="./photos").model.note == "'sdxl' resolved to sdxl-unet"


def test_a_folder_gives_the_run_its_name(tiny_pipeline: TinyPipeline) -> None:
    Path("my model!").symlink_to(tiny_pipeline("flux"))
    assert read_target("./my model!/", data="./photos").experiment.name == "my-model-"


def test_another_length_replaces_the_steps() -> None:
    train = read_target("flux.1-dev", ["train.epochs=2"], data="./photos").experiment.train
    assert (train.epochs, train.steps) == (2, None)


def files(*names: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")

    return write


@pytest.mark.parametrize(
    ("model", "write", "kind"),
    [
        ("flux.1-dev", files("1.png"), "folder"),
        ("wan2.1-t2v-1.3b", files("1.mp4"), "clips"),
        ("flux.1-dev", files("shards.json", "000000.tar"), "shards"),
        ("flux.1-dev", files("dataset_info.json", "state.json"), "huggingface"),
        ("flux.1-dev", files("train-0000.parquet"), "huggingface"),
        ("flux.1-dev", files("README.md", "data/train-00000-of-00001.parquet"), "huggingface"),
        ("ddpm-cifar10", files("train/1.png"), "cifar10"),
        ("ddpm-cifar10", files("train/1.png", "train/1.txt", "trainLabels.csv"), "cifar10"),
        ("flux.1-dev", files("train/1.png", "train/1.txt"), "folder"),
        ("ddpm-cifar10", files("cifar-10/train/1.png"), "cifar10"),
        ("ddpm-cifar10", files("cifar-10-batches-py/data_batch_1"), "cifar10"),
    ],
)
def test_the_files_of_a_folder_tell_the_kind_of_data(
    model: str, write: Callable[[Path], None], kind: str, work: Path
) -> None:
    write(work / "photos")
    data = read_target(model, data="./photos").experiment.data
    assert (data.kind, getattr(data, "path", None)) == (kind, "./photos")


def test_an_address_is_a_packed_set() -> None:
    data = read_target("flux.1-dev", data="s3://bucket/set").experiment.data
    assert (data.kind, getattr(data, "path", None)) == ("shards", "s3://bucket/set")


def test_an_encoded_set_is_read_as_it_was_encoded(work: Path) -> None:
    settings: dict[str, object] = {
        "data.kind": "clips",
        "data.trigger": None,
        "data.folders": [],
        "data.crop": "center",
        "data.resolution": "416x240, 33 frames",
        "data.flip": "sometimes",
        "data.held_out": "any",
        "data.max_text_tokens": 16,
        "train.seed": "any",
    }
    (work / "photos" / "encoded.json").write_text(json.dumps({"settings": settings}))
    (work / "photos" / "shards.json").write_text("{}")
    data = read_target("wan2.1-t2v-1.3b", data="photos").experiment.data
    assert (data.kind, data.encoded, data.resolution, data.num_frames) == ("clips", "photos", "416x240", 33)
    assert (data.flip, data.max_text_tokens) == (0.5, 16)


def test_a_kind_that_is_typed_keeps_the_folder() -> None:
    data = read_target("flux.1-dev", ["data.kind=huggingface", "data.split=test"], data="./photos").experiment.data
    assert (data.kind, getattr(data, "path", None), data.resolution) == ("huggingface", "./photos", 1024)


def test_a_path_that_is_typed_is_the_data() -> None:
    typed = read_target("flux.1-dev", ["data.path=./photos"])
    assert typed.experiment == read_target("flux.1-dev", data="./photos").experiment


def test_without_data() -> None:
    with pytest.raises(UserError, match=r"Run: foretune train flux\.1-dev --data \./photos"):
        read_target("flux.1-dev")
    synthetic = read_target("flux.1-dev", is_synthetic=True)
    assert (synthetic.experiment.data.kind, synthetic.has_data) == ("shapes", False)
    assert read_target("flux.1-dev", ["data.kind=shapes"]).has_data
    assert read_target("foretune-shapes").experiment.data.kind == "shapes"


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("fluxx", "'flux.1-dev', 'flux.1-schnell' or 'flux.2-dev'"),
        ("flux.1-def", "'flux.1-dev'"),
        ("sdxll", "'sdxl-unet'"),
    ],
)
def test_an_unknown_name_suggests_close_ones(target: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        read_target(target, data="./photos")
    assert str(caught.value) == f"There is no experiment file or model named {target!r}. Did you mean {near}?"


def test_a_name_of_several_models_lists_them() -> None:
    with pytest.raises(AmbiguousName) as caught:
        read_target("flux")
    assert caught.value.candidates == ("flux.1-dev", "flux.1-schnell", "flux.2-dev")


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        read_target("flux.1-def", ["train.stepz=3", "model=sdxl", "data.path=x", "optimizer.lr"], data="./photos")
    text = str(caught.value)
    assert "5 mistakes" in text
    for part in (
        "named 'flux.1-def'",
        "The data is named twice: ./photos and data.path=x.",
        "The model is named twice: flux.1-def and model=sdxl.",
        "train.stepz: unknown key",
        "'optimizer.lr' is not an override",
    ):
        assert part in text


def test_a_section_beside_the_folder_names_the_data_twice() -> None:
    with pytest.raises(UserError, match=r"The data is named twice: \./photos and data="):
        read_target("flux.1-dev", ["data={kind: shapes}"], data="./photos")


def test_a_file_has_its_own_data(work: Path) -> None:
    (work / "x.yaml").write_text("model: flux.1-dev\ndata: {kind: shapes}\ntrain: {steps: 3}\n")
    assert not read_target("x.yaml").is_by_name
    with pytest.raises(UserError, match=r"Run: foretune train x\.yaml data\.path=\./photos"):
        read_target("x.yaml", data="./photos")


def test_a_file_named_like_a_model_is_read_and_reported(work: Path) -> None:
    (work / "sdxl").write_text("model: flux.1-dev\ndata: {kind: shapes}\ntrain: {steps: 3}\n")
    asked = read_target("sdxl")
    assert asked.experiment.model == "flux.1-dev"
    assert asked.warnings[0].startswith("sdxl is a file here, so it is read as an experiment.")
    (work / "mine").write_text("model: flux.1-dev\ndata: {kind: shapes}\ntrain: {steps: 3}\n")
    assert read_target("mine").warnings == ()


def test_a_folder_named_like_a_model_is_used_and_reported(tiny_pipeline: TinyPipeline) -> None:
    Path("flux.1-dev").symlink_to(tiny_pipeline("flux"))
    asked = read_target("flux.1-dev", data="./photos")
    assert asked.model.kind == "folder"
    assert asked.warnings[0].startswith("flux.1-dev is a folder here")


def test_a_run_directory_is_no_model(work: Path) -> None:
    (work / "run").mkdir()
    (work / "run" / "experiment.yaml").touch()
    with pytest.raises(UserError, match=r"run is a run directory\. Its experiment is a file: run/experiment\.yaml"):
        read_target("run")
