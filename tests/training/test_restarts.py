"""A launcher that repeats its command: the run goes on. Here SLURM's variables, as a requeued job has them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.core.interrupts import StopRequest
from foretune.core.observer import Observer
from foretune.training.restarts import launch_id, num_restarts
from foretune.training.several import train_in_ranks
from tests.training.short_runs import short_asked

TinyPipeline = Callable[..., Path]


@pytest.mark.parametrize(
    ("variables", "launch", "restarts"),
    [
        ({}, None, 0),
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c"}, "SLURM c 7", 0),
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURM_RESTART_COUNT": "2"}, "SLURM c 7", 2),
        ({"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "1", "SLURM_JOB_ID": "7"}, "torchrun x", 1),
    ],
)
def test_a_launch_is_known_again(variables: dict[str, str], launch: str | None, restarts: int) -> None:
    assert (launch_id(variables), num_restarts(variables)) == (launch, restarts)


def test_a_requeued_job_goes_on_with_its_run_and_no_other(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runs = tiny_pipeline("ddpm"), tmp_path / "runs"
    asked = short_asked(model, tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "__init__", lambda stop: setattr(stop, "reason", "SIGUSR1"))
        stopped = train_in_ranks(asked, runs, Observer())
    assert stopped.record.outcome.status == "interrupted"
    assert train_in_ranks(asked, runs, Observer()).run.path != stopped.run.path, "typed again, it is another run"

    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "__init__", lambda stop: setattr(stop, "reason", "SIGUSR1"))
        stopped = train_in_ranks(asked, runs, Observer())
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    other = train_in_ranks(short_asked(model, tmp_path, optimizer={"lr": 2e-3}), runs, Observer())
    assert other.run.path != stopped.run.path, "another experiment of the same job"
    resumed = train_in_ranks(asked, runs, Observer())
    assert resumed.run.path == stopped.run.path
    assert resumed.record.outcome.status == "finished"
