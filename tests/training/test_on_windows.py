"""On Windows one process trains, saves and resumes; several are refused before anything is loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest

import foretune as ft
from foretune.choices.running import Parallel
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.measure.fresh_process import _died
from foretune.training.launching import launch_once
from tests.matrix.running import as_if_killed_after_the_first_step
from tests.training.short_runs import short_mapping, short_run
from tests.windows import pretend_windows

TinyPipeline = Callable[..., Path]
IN_WSL = r"On Windows, install and run Foretune in WSL: https://aka.ms/wsl\. Nearest: parallel.devices=1"


@pytest.fixture(autouse=True)
def _windows(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_windows(monkeypatch)


def test_one_process_trains_and_resumes(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    save = {"every": 1, "keep": 2, "asynchronous": False}
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, train={"steps": 2}, save=save)
    assert trained.record.outcome.status == "finished"
    killed = as_if_killed_after_the_first_step(trained.run, tmp_path)
    resumed = ft.resume(killed.path)
    assert resumed.status == "finished"
    assert resumed.record is not None
    assert resumed.record.measured.peak_host_bytes


def test_several_processes_are_refused_before_the_model_is_looked_for(tmp_path: Path) -> None:
    experiment = {**short_mapping(tmp_path, tmp_path, parallel={"devices": 2}), "model": "nobody/nothing"}
    with pytest.raises(UserError, match=f"^Training on several devices starts and ends processes .*{IN_WSL}$"):
        ft.train(experiment, runs=tmp_path / "runs")
    with pytest.raises(UserError, match=f"^A bench on several devices .*{IN_WSL}$"):
        launch_once("A bench", Parallel(devices=2), "worker", {}, Observer())


@pytest.mark.parametrize("code", [1, 3221225477])
def test_a_measurement_that_died_says_how(code: int) -> None:
    assert str(code) in str(_died(code, "Traceback\nRuntimeError: planted\n"))
