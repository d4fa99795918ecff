"""The run directory: made once, read back, and honest about what it lacks."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.choices.experiment import Experiment
from foretune.core.errors import UserError
from foretune.core.values import RunRecord, WrongFormat
from foretune.record.run_directory import RunDirectory
from tests.core.formats import frozen_file

AS_ASKED: dict[str, Any] = {
    "model": "flux.1-dev",
    "data": {"kind": "shapes"},
    "train": {"steps": 10, "precision": "fp16", "loss_scaling": "off"},
    "optimizer": {"lr": 1e-4},
    "validate": {"prompts": ["ein Café"]},
}
EXPERIMENT = Experiment.model_validate(AS_ASKED)
RECORD = RunRecord.from_json(frozen_file("RunRecord", 1).read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "runs", "flux-lora")
    directory.write_experiment(AS_ASKED, EXPERIMENT, {"resolution_px": 1024, "model_revision": None})
    return directory


def test_a_new_directory(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs", "flux-lora")
    assert run.path.parent == tmp_path / "runs" / "flux-lora"
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", run.run_id)
    assert run.checkpoints.is_dir()
    assert run.samples.is_dir()
    assert run.events == run.path / "events.jsonl"


def test_many_starts_in_one_second_do_not_meet(tmp_path: Path) -> None:
    assert len({RunDirectory.create(tmp_path, "x").path for _ in range(200)}) == 200


def test_latest_leads_to_the_newest(tmp_path: Path) -> None:
    for _ in range(2):
        run = RunDirectory.create(tmp_path, "x")
        run.write_experiment(AS_ASKED, EXPERIMENT, {})
        opened = RunDirectory.open(tmp_path / "x" / "latest")
        assert opened.run_id == run.run_id
    assert not list((tmp_path / "x").glob(".*"))


def test_a_folder_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x" / "latest").mkdir(parents=True)
    (tmp_path / "x" / "latest" / "mine.txt").write_text("mine")
    run = RunDirectory.create(tmp_path, "x")
    assert run.path.is_dir()
    assert (tmp_path / "x" / "latest" / "mine.txt").read_text() == "mine"
    assert not list((tmp_path / "x").glob(".*"))


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match=r"The run directory .* cannot be made: .*--runs"):
        RunDirectory.create(tmp_path / "runs", "x")


def test_opening(run: RunDirectory) -> None:
    assert RunDirectory.open(run.path) == run


@pytest.mark.parametrize("what", ["nowhere", "."])
def test_opening_what_is_no_run(tmp_path: Path, what: str) -> None:
    with pytest.raises(UserError, match=r"is not a run directory: it has no experiment\.yaml\. A run's path has"):
        RunDirectory.open(tmp_path / what)


def test_the_experiment_comes_back_as_asked_and_as_resolved(run: RunDirectory) -> None:
    assert run.read_experiment() == (AS_ASKED, EXPERIMENT, {"resolution_px": 1024, "model_revision": None})


def test_the_experiment_is_a_file_for_people(run: RunDirectory) -> None:
    text = (run.path / "experiment.yaml").read_text(encoding="utf-8")
    assert "ein Café" in text
    assert list(yaml.safe_load(text)) == ["asked", "resolved", "effective"]


@pytest.mark.parametrize(
    "content",
    ["", "just words", "asked: {}", "a: [", "[1, 2]", "asked: {}\nresolved: 5\neffective: {}\n", b"\xff\xfe"],
)
def test_a_damaged_experiment_is_named(run: RunDirectory, content: str | bytes) -> None:
    path = run.path / "experiment.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(WrongFormat, match=re.escape(str(path))) as caught:
        run.read_experiment()
    assert "\n" not in str(caught.value)


def test_an_experiment_of_a_newer_release_is_named_with_the_upgrade(run: RunDirectory) -> None:
    path = run.path / "experiment.yaml"
    written = f"format_version: {Experiment.format_version()}"
    newer = f"format_version: {Experiment.format_version() + 1}"
    path.write_text(path.read_text(encoding="utf-8").replace(written, newer))
    with pytest.raises(WrongFormat, match=rf"{re.escape(str(path))}: .*pip install --upgrade foretune"):
        run.read_experiment()


def test_the_record_comes_back(run: RunDirectory) -> None:
    assert run.read_record() is None
    run.write_record(RECORD)
    back = run.read_record()
    assert back is not None
    assert back.to_json() == RECORD.to_json()
    run.remove_record()
    run.remove_record()
    assert run.read_record() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"format": "Plan", "format_version": 1}'])
def test_a_damaged_record_is_named(run: RunDirectory, content: bytes) -> None:
    path = run.path / "record.json"
    path.write_bytes(content)
    with pytest.raises(WrongFormat, match=re.escape(str(path))):
        run.read_record()


def test_the_environment_is_written(run: RunDirectory) -> None:
    run.write_environment({"python": "3.11", "cpu": None})
    assert (run.path / "environment.json").read_text() == '{\n  "cpu": null,\n  "python": "3.11"\n}\n'
