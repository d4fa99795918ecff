"""What every sink owes: its name can be asked for, missing packages are said early, failures end no run, no secrets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from foretune.choices.running import Tracker as TrackerName
from foretune.config.readiness import missing_trackers
from foretune.core import extras
from foretune.core.errors import ExperimentErrors, MissingExtra
from foretune.core.observer import Observer, StepReport
from foretune.core.trackers import TRACKER_SPECS, TrackerSpec
from foretune.training.trackers import TRACKERS, open_trackers, require_trackers
from foretune.training.trackers.tracker import settings_of, status_of, step_scalars
from tests.training.short_runs import Recording, short_asked, short_run

TinyPipeline = Callable[..., Path]
NEEDING_PACKAGES = [name for name, spec in TRACKER_SPECS.items() if spec.packages]


def test_what_can_be_asked_for_is_what_there_is(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    assert set(TRACKERS) == set(get_args(TrackerName)) == set(TRACKER_SPECS)
    assert set(NEEDING_PACKAGES) <= set(extras.PACKAGES)
    with pytest.raises(ExperimentErrors, match=r"track.*tensorbord"):
        short_asked(tiny_pipeline("ddpm"), tmp_path, track=["tensorbord"])


@pytest.mark.parametrize("name", NEEDING_PACKAGES)
def test_a_missing_package_is_said_before_anything_is_made(
    name: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda package: None)
    with pytest.raises(MissingExtra, match=rf"track: \[{name}\] needs .*pip install 'foretune\[{name}\]'"):
        short_run(tiny_pipeline("ddpm"), tmp_path, track=[name])
    assert not (tmp_path / "runs").exists()
    require_trackers([])


def test_a_tracker_without_packages_is_never_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TrackerSpec(name="plain", target="tests.training.trackers.test_all:Failing")
    monkeypatch.setattr("foretune.config.readiness.TRACKER_SPECS", {**TRACKER_SPECS, "plain": plain})
    monkeypatch.setattr(extras, "find_spec", lambda package: None)
    assert missing_trackers(["plain"]) is None
    error = missing_trackers(["plain", "wandb", "mlflow"])
    assert error is not None
    assert "track: [wandb, mlflow] needs" in str(error)
    assert error.extra == "wandb,mlflow"


class Failing(Observer):
    """Hears two steps, then its disk is full."""

    num_heard = 0

    def __init__(self, directory: Path) -> None:
        Failing.num_heard = 0

    def stepped(self, report: StepReport) -> None:
        Failing.num_heard += 1
        if Failing.num_heard == 2:
            raise OSError("the disk is full")


class Unwilling(Observer):
    def __init__(self, directory: Path) -> None:
        raise ConnectionError("no route to host")


@pytest.mark.parametrize(
    ("made", "reason", "num_heard"), [(Failing, "the disk is full", 2), (Unwilling, "no route", 0)]
)
def test_a_sink_that_fails_ends_no_run(
    made: Any, reason: str, num_heard: int, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    Failing.num_heard = 0
    monkeypatch.setattr("foretune.training.trackers.TRACKERS", {"tensorboard": made})
    observer = Recording()
    trained = short_run(tiny_pipeline("ddpm"), tmp_path, observer=observer, track=["tensorboard"])
    assert trained.record.outcome.status == "finished"
    (warning,) = observer.of("warning")
    assert "tensorboard failed and hears no more of this run" in warning
    assert reason in warning
    assert Failing.num_heard == num_heard


def test_what_is_told_of_a_run_holds_no_secret(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-71d2")
    run = short_run(tiny_pipeline("ddpm"), tmp_path).run
    name, run_id, settings = settings_of(run.path)
    assert (name, run_id) == ("short", run.run_id)
    assert settings["train.steps"] == 3
    assert settings["effective.num_steps"] == 3
    assert "canary-71d2" not in json.dumps(settings)
    assert status_of(run.path) == "finished"
    run.events.write_text("")
    assert status_of(run.path) == "killed"
    assert open_trackers([], run.path, Observer()) == []


def test_the_names_of_a_steps_numbers() -> None:
    report = StepReport(
        step=0,
        num_steps=2,
        loss=0.5,
        grad_norm=None,
        lr=1e-3,
        step_s=0.5,
        samples_per_step=4,
        phases_s={"data": 0.1},
        memory_bytes={"host": 1024},
    )
    assert step_scalars(report) == {
        "train/loss": 0.5,
        "train/lr": 1e-3,
        "train/step_s": 0.5,
        "train/samples_per_s": 8.0,
        "phases_s/data": 0.1,
        "memory_bytes/host": 1024.0,
    }
