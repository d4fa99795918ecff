"""`foretune sweep`, as a person types it: what it prints, what it refuses, what it leaves."""

import csv
import platform
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.executors import executor as executors
from foretune.executors.outcome import TaskOutcome
from foretune.sweeps import baseline, forecasting
from foretune.sweeps.forecasting import Baseline
from foretune.sweeps.presets import SWEEP_PRESETS
from tests.cli.conftest import Foretune
from tests.sweeps.fake_executor import DONE, FakeExecutor
from tests.sweeps.sweeps_of_tests import AXES, EXPERIMENT


@pytest.fixture
def performed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    """A sweep file and an experiment in this directory, and an executor that decides what comes of trials."""

    def decide(asked: dict[str, Any]) -> TaskOutcome:
        if asked["train"]["batch_size"] == 2 and asked["train"]["precision"] == "fp32":
            return TaskOutcome(kind="out of host memory", reason="no memory", num_attempts=1, seconds=1.0)
        return DONE

    executor = FakeExecutor(decide)
    monkeypatch.setattr(executors, "open_executor", lambda *_: executor)
    monkeypatch.setattr(baseline, "measured_baseline", lambda *_: Baseline(2**29, 2**29))
    monkeypatch.setattr(forecasting.Forecasts, "plan", lambda *_: None)
    (tmp_path / "batches.yaml").write_text(yaml.safe_dump({"experiment": EXPERIMENT, "axes": AXES}))
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    return executor


def test_a_sweep_prints_each_trial_a_table_and_an_answer(
    tmp_path: Path, foretune: Foretune, performed: FakeExecutor
) -> None:
    answer = foretune("sweep", "batches.yaml", "--no-plot")
    assert answer.returncode == 0, answer.stderr
    assert len(performed.performed) == 4
    assert "batches: 4 combinations, 1 seed, executor local. Results: sweeps/batches/sweep_000" in answer.stderr
    assert "[3/4] batch_size 2, precision fp32, seed 0: out of host memory. no memory" in answer.stderr
    assert "Cannot tell: no combination has finished with a speed." in answer.stdout
    assert "1 trials did not finish" not in answer.stdout
    assert "1 trial did not finish; its log: sweeps/batches/sweep_000/trials/" in answer.stdout
    with (tmp_path / "sweeps/batches/sweep_000/runs_summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == ["done", "done", "out of host memory", "done"]
    assert (tmp_path / "sweeps/batches/sweep_000" / rows[0]["run"] / "record.json").is_file()
    again = foretune("sweep", "batches.yaml", "--no-plot")
    assert len(performed.performed) == 4
    assert "(earlier)" in again.stderr


def test_an_experiment_with_several_values_is_a_sweep(
    tmp_path: Path, foretune: Foretune, performed: FakeExecutor
) -> None:
    overrides = ("train.batch_size=1,4", "train.precision=bf16")
    answer = foretune("sweep", "experiment.yaml", *overrides, "--no-plot", "--seed", "3", "--seed", "4", "--json")
    assert answer.returncode == 0, answer.stderr
    trains = [task.request["experiment"]["train"] for task in performed.performed]
    assert [(train["batch_size"], train["precision"], train["seed"]) for train in trains] == [
        (1, "bf16", 3), (4, "bf16", 3), (4, "bf16", 4), (1, "bf16", 4),
    ]  # fmt: skip
    assert '"format": "SweepSummary"' in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("batches.yaml", "--executor", "slrum"), "There is no executor named 'slrum'. Did you mean 'slurm'?"),
        (("batchs",), "There is no sweep or sweep file named 'batchs'"),
        (("experiment.yaml",), "no key has several values"),
        (("nowhere.yaml",), "nowhere.yaml does not exist"),
        (("batches.yaml", "--name", "../up"), "cannot name a sweep"),
        (("batches.yaml", "--dry-run"), "--dry-run goes with --executor sky"),
        (("batches.yaml", "--option", "jobs"), "is not an option of an executor"),
        (("batches.yaml", "--measure", "sped"), "'sped' is not one of train, speed. Did you mean 'speed'?"),
    ],
)
def test_mistakes_are_answered_with_what_to_type(
    arguments: tuple[str, ...], words: str, foretune: Foretune, performed: FakeExecutor
) -> None:
    answer = foretune("sweep", *arguments, "--no-plot")
    assert answer.returncode == 2
    assert words in answer.stderr
    assert performed.performed == []


def test_a_preset_is_printed_to_be_changed(foretune: Foretune) -> None:
    for name, path in SWEEP_PRESETS.items():
        assert foretune("sweep", name, "--show").stdout == path.read_text()


@pytest.mark.parametrize(
    ("command", "feature"), [(("sweep", "batches.yaml"), "A sweep"), (("study", "workers"), "A study")]
)
def test_on_windows_they_say_what_to_do(
    command: tuple[str, str], feature: str, foretune: Foretune, performed: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    answer = foretune(*command, "--no-plot")
    assert answer.returncode == 2
    assert f"{feature} starts and ends processes as Linux and macOS do." in answer.stderr
    assert "install and run Foretune in WSL: https://aka.ms/wsl" in answer.stderr
    assert performed.performed == []


def test_what_an_executor_notes_is_shown_once(foretune: Foretune, performed: FakeExecutor) -> None:
    performed.notes.append("A task takes 3 GPU on one node, and no node of the Ray cluster has that.")
    answer = foretune("sweep", "batches.yaml", "--no-plot")
    assert answer.stderr.count("Warning: A task takes 3 GPU on one node") == 1
