"""Training, measuring and profiling begin with a model's name: what runs, what is stored, and what is reported."""

import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import foretune as ft
from foretune.cli.main import app
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.measure.bench import BenchChoices
from tests.training.short_runs import Recording

CHANGES = [
    "train.steps=2",
    "train.gradient_accumulation=1",
    "train.precision=fp32",
    "data.resolution=32,32",
    "data.max_text_tokens=16",
    "data.held_out=0",
    "validate.every=null",
    "validate.prompts=[]",
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_pipeline: Callable[..., Path]) -> Path:
    """A working directory with a tiny model and a folder of images."""
    monkeypatch.chdir(tmp_path)
    # A tiny model is not in the catalogue, so that its steps would be recorded for each plan.
    monkeypatch.setattr("foretune.training.forecast.plan_here", lambda *_: None)
    (tmp_path / "tiny").symlink_to(tiny_pipeline("flux"))
    (tmp_path / "photos").mkdir()
    for number in range(4):
        Image.new("RGB", (40, 40), (number * 50, 90, 0)).save(tmp_path / "photos" / f"{number}.png")
        (tmp_path / "photos" / f"{number}.txt").write_text(f"patch {number}")
    return tmp_path


def losses(observer: Recording) -> list[float]:
    return [report.loss for report in observer.of("stepped")]


def test_a_folder_by_name_trains_as_from_the_file_that_init_writes(work: Path) -> None:
    named, from_file, again = Recording(), Recording(), Recording()
    run = ft.train("tiny", CHANGES, data="./photos", runs="elsewhere", observer=named)
    assert run.status == "finished"
    assert run.path.parent.name == "tiny"
    ft.init("tiny.yaml", model="tiny", data="./photos")
    written = ft.train("tiny.yaml", CHANGES, observer=from_file)
    assert run.experiment == written.experiment
    assert losses(named) == losses(from_file)
    assert len(losses(named)) == 2

    text = "\n".join(named.of("message"))
    for part in ("Model: tiny", "Data: ./photos (folder), 32x32 px", "Length: 2 steps", "learning rate 0.0001, cosine"):
        assert part in text
    (line,) = [line for line in named.of("message") if line.startswith("Experiment file: ")]
    file, _, command = line.removeprefix("Experiment file: ").partition(". To run it again: ")
    assert Path(file) == run.path / "experiment.yaml"
    assert shlex.split(command) == ["foretune", "train", file, "--runs", "elsewhere"]
    assert not [line for line in from_file.of("message") if line.startswith(("Experiment file", "Model:"))]
    repeated = ft.train(file, observer=again)
    assert repeated.experiment == run.experiment
    assert losses(again) == losses(named)


def test_a_rehearsal_begins_with_a_name(work: Path) -> None:
    observer = Recording()
    found = ft.rehearse("tiny", CHANGES, data="./photos", observer=observer)
    assert found.resume_difference == 0
    assert not [line for line in observer.of("message") if line.startswith("Experiment file")], "it is removed"
    with pytest.raises(UserError, match="There are no data to train on"):
        ft.rehearse("tiny", CHANGES)


@pytest.mark.parametrize(
    ("options", "is_synthetic"),
    [
        ({}, True),
        ({"data": "./photos"}, False),
        ({"changes": ["data.kind=shapes"]}, False),
        ({"data": "./photos", "synthetic": True}, True),
    ],
)
def test_a_bench_of_a_name_without_data_is_synthetic(
    options: dict[str, Any], is_synthetic: bool, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[Asked, BenchChoices]] = []

    def measure(asked: Asked, choices: BenchChoices, *_: object) -> SimpleNamespace:
        measured.append((asked, choices))
        series = SimpleNamespace(repeats=(SimpleNamespace(run="benches/tiny/1/runs/one"),))
        return SimpleNamespace(series=series)

    monkeypatch.setattr("foretune.measure.bench.bench", measure)
    observer = Recording()
    ft.bench("tiny", steps=7, repeat=2, observer=observer, **options)
    ((asked, choices),) = measured
    assert choices.is_synthetic == is_synthetic
    assert asked.experiment.name == "tiny"
    *_, last = observer.of("message")
    command = "foretune bench benches/tiny/1/runs/one/experiment.yaml --steps 7 --repeat 2"
    assert last.endswith(f"To run it again: {command}{' --synthetic' if is_synthetic else ''}")
    assert any("Data: synthetic latents and captions" in line for line in observer.of("message")) == is_synthetic


def test_a_profile_begins_with_a_name_and_a_model_folder_is_no_run(work: Path) -> None:
    observer = Recording()
    found = ft.profile("tiny", CHANGES, data="./photos", steps=1, observer=observer)
    assert found.trace.is_file()
    file = found.run / "experiment.yaml"
    assert f"Experiment file: {file}. To run it again: foretune profile {file} --steps 1" in observer.of("message")


def test_verbs_without_data_report_what_to_type(work: Path) -> None:
    for verb in ("train", "profile"):
        with pytest.raises(UserError, match=r"There are no data to train on.*--data \./photos"):
            app([verb, "flux.1-dev"], standalone_mode=False)
    with pytest.raises(UserError, match="--data is for training: inference reads no data"):
        app(["bench", "flux.1-dev", "--inference", "--data", "photos"], standalone_mode=False)


def test_a_name_of_the_catalogue_looks_for_its_repository_on_the_hub(work: Path) -> None:
    """There is no network here: the error names the repository, the reason and what to do, in plain sentences."""
    with pytest.raises(UserError) as caught:
        ft.train("flux.1-dev", ["parallel.device=cpu"], data="./photos")
    text = str(caught.value)
    assert text.startswith("black-forest-labs/FLUX.1-dev could not be downloaded from the Hub: it is not in the cache")
    assert "HF_HUB_OFFLINE turns downloads off" in text
    assert "type the folder in place of the model's name" in text
    assert "Error:" not in text
    assert not (work / "runs").exists()
