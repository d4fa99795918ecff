"""`parallel.devices=2` starts two processes on this machine, with torch's elastic agent."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml

from foretune.core.errors import UserError
from foretune.core.interrupts import Interrupted
from foretune.record.run_directory import RunDirectory
from foretune.training.launching import Launched, _variables
from tests.training.short_runs import events_of, losses_of, short_mapping
from tests.waiting import HANG_S, waited_until

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

TinyPipeline = Callable[..., Path]


def experiment_file(model: Path, work: Path, **sections: Any) -> Path:
    path = work / "two.yaml"
    path.write_text(yaml.safe_dump(short_mapping(model, work, **sections)))
    return path


def started(forked: "ForkedPython", work: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [forked.foretune, *arguments],
        cwd=work,
        env={**os.environ, **forked.variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_of(work: Path) -> RunDirectory:
    (path,) = (work / "runs" / "short").glob("2*")
    return RunDirectory(path)


def waited_for_step(work: Path, step: int) -> None:
    """Returns when the log has a step."""
    waited_until(
        lambda: (
            any((work / "runs").rglob("events.jsonl"))
            and any(event.get("step", 0) >= step for event in events_of(run_of(work), "step"))
        )
    )


@pytest.mark.parametrize(("num_processors", "devices", "threads"), [(128, 8, "16"), (2, 2, "1"), (6, 4, "1")])
def test_the_processes_share_the_processors(
    num_processors: int, devices: int, threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_processors)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with _variables(tmp_path, devices):
        assert os.environ["OMP_NUM_THREADS"] == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with _variables(tmp_path, devices):
        assert os.environ["OMP_NUM_THREADS"] == "3", "the user's own number stays"


def test_two_processes_are_started_and_nothing_listens_on_a_public_address(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    path = experiment_file(
        tiny_pipeline("ddpm"), tmp_path, train={"steps": 40}, parallel={"devices": 2}, save={"every": 10}
    )
    process = started(forked_python, tmp_path, "train", str(path))
    waited_for_step(tmp_path, 2)
    listening = [
        connection.laddr.ip
        for one in psutil.Process(forked_python.server_pid).children(recursive=True)
        for connection in one.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    out, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    assert set(listening) == {"127.0.0.1"}
    assert "2 processes on cpu (gloo, started by Foretune), DDP: each holds all" in out + errors
    assert "Global batch: 4 = 2 x 2 processes." in out + errors
    run = run_of(tmp_path)
    record = json.loads((run.path / "record.json").read_text())
    assert record["outcome"]["status"] == "finished"
    assert len(losses_of(run)) == 40


def test_asked_to_stop_they_save_and_resume_goes_on(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    path = experiment_file(tiny_pipeline("ddpm"), tmp_path, train={"steps": 400}, parallel={"devices": 2})
    process = started(forked_python, tmp_path, "train", str(path))
    waited_for_step(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, errors
    run = run_of(tmp_path)
    record = run.read_record()
    assert record is not None
    assert record.outcome.status == "interrupted"
    assert f"foretune resume {Path('runs') / 'short' / run.run_id}" in out + errors


def test_a_signal_before_the_first_step_is_an_interruption_and_no_mistake_of_the_user() -> None:
    """Schedulers read the exit code: 2 would be a wrong setting."""
    with pytest.raises(Interrupted, match=r"Interrupted by SIGTERM\. No step was made\."):
        Launched(signal="SIGTERM").run()
    with pytest.raises(UserError, match="ended by something that left no trace"):
        Launched().run()
