"""Tasks, their folders, and what can be read from the files alone."""

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from foretune.core.errors import UserError
from foretune.executors import task_files as files
from foretune.executors.executor import EXECUTORS, open_executor
from foretune.executors.outcome import OUTCOME_KINDS, TaskOutcome
from foretune.executors.process_identity import is_alive, own_identity
from foretune.executors.state import read_state
from foretune.executors.task import Limits, Resources, Task
from foretune.executors.task_lock import is_locked, release_lock, take_lock
from tests.executors.cluster_tasks import toy_task
from tests.waiting import waited_until


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    task = toy_task(
        tmp_path,
        "square",
        number=2,
        limits=Limits(seconds=5.0, host_bytes=2**30),
        resources=Resources(num_devices=2, num_nodes=3, num_cpus=4),
        max_attempts=7,
        text="token=abcdefghij is in a prompt",
    )
    files.write_task(task)
    assert files.read_task(task.folder) == task
    assert stat.S_IMODE((task.folder / "task.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\n", "ä", "x" * 101, "$(x)"])
def test_names_that_are_not_valid(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="not a valid task name"):
        Task(name=name, worker="a.b", request={}, folder=tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Resources(num_nodes=0),
        lambda: Resources(num_devices=-1),
        lambda: Resources(num_cpus=0),
        lambda: Limits(seconds=0),
        lambda: Limits(host_bytes=-1),
        lambda: Task(name="a", worker="a; b", request={}, folder=Path()),
        lambda: Task(name="a", worker="a", request={}, folder=Path(), max_attempts=0),
    ],
)
def test_values_that_are_not_valid(make: Any) -> None:
    with pytest.raises(UserError):
        make()


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
def test_the_first_outcome_stays(tmp_path: Path, kind: Any) -> None:
    outcome = TaskOutcome(kind=kind, reason="so", log_lines=("a", "b"), exit_code=3, num_attempts=2, seconds=1.5)
    assert files.write_outcome(tmp_path, outcome)
    assert not files.write_outcome(tmp_path, TaskOutcome(kind="done"))
    assert files.read_outcome(tmp_path) == outcome
    assert read_state(tmp_path).kind == "ended"
    assert [path.name for path in tmp_path.iterdir()] == ["outcome.json"], "nothing unfinished is left"


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    assert files.last_log_lines(tmp_path) == ()
    lines = [f"line {number}" for number in range(100)]
    bar = "step 1\rstep 2\rstep 3\r"
    secret = "password=hunter2hunter2"
    (tmp_path / "log.txt").write_bytes(
        "\n".join([*lines, "", bar, secret, "y" * 1000, "\udcff"]).encode("utf-8", "replace")
    )
    last = files.last_log_lines(tmp_path)
    assert len(last) == files.NUM_LOG_LINES
    assert last[-5:-1] == ("line 99", "step 3", "password=[redacted]", "y" * 500)


def test_states_from_the_files(tmp_path: Path) -> None:
    task = toy_task(tmp_path, "square", number=1)
    assert read_state(task.folder).kind == "waiting"
    files.write_task(task)
    pid = os.fork()
    if pid == 0:
        take_lock(task.folder)
        files.begin_attempt(task.folder)
        signal.pause()
        os._exit(0)
    waited_until(lambda: read_state(task.folder).kind == "running")
    state = read_state(task.folder)
    assert state.attempt is not None
    assert (state.attempt.pid, state.num_attempts, state.was_interrupted) == (pid, 1, False)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    state = read_state(task.folder)
    assert (state.kind, state.was_interrupted) == ("waiting", True)


def test_attempts_count_from_the_last_submission(tmp_path: Path) -> None:
    task = toy_task(tmp_path, "square", number=1)
    for expected in (1, 2):
        files.write_task(task)
        files.begin_attempt(task.folder)
        files.mark_interrupted(task.folder, expected, "the node was lost")
        assert files.num_attempts_of_submission(task.folder) == 1
        assert len(files.read_attempts(task.folder)) == expected


def test_a_lock_of_this_process_is_not_lost_by_looking_at_it(tmp_path: Path) -> None:
    assert is_locked(tmp_path) is False
    assert take_lock(tmp_path)
    assert is_locked(tmp_path)
    pid = os.fork()
    if pid == 0:
        from foretune.executors import task_lock

        task_lock._held.clear()
        os._exit(0 if is_locked(tmp_path) and not take_lock(tmp_path) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    release_lock(tmp_path)
    assert is_locked(tmp_path) is False


def test_a_number_that_the_system_uses_again_is_another_process() -> None:
    own = own_identity()
    assert is_alive(own["host"], own["boot"], own["pid"], own["process_start"])
    assert not is_alive(own["host"], own["boot"], own["pid"], own["process_start"] - 1)
    assert not is_alive(own["host"], "another boot", own["pid"], own["process_start"])
    assert is_alive("another-host", own["boot"], own["pid"], own["process_start"]) is None


def test_executors_by_name() -> None:
    assert set(EXECUTORS) == {"local", "ray", "sky", "slurm"}
    with pytest.raises(UserError, match="sky jobs launch FILE"):
        open_executor("sky", {})
    with pytest.raises(UserError, match="Did you mean 'slurm'"):
        open_executor("slrum", {})
    with pytest.raises(UserError, match="Did you mean 'jobs'"):
        open_executor("local", {"job": 2})
    with pytest.raises(UserError, match="jobs"):
        open_executor("local", {"jobs": "many"})


def test_an_outcome_is_json_that_other_programs_read(tmp_path: Path) -> None:
    files.write_outcome(tmp_path, TaskOutcome(kind="timed out", reason="It took longer than its limit of 2 s."))
    fields = json.loads((tmp_path / "outcome.json").read_text())
    assert (fields["version"], fields["kind"]) == (1, "timed out")


def test_an_attempt_forgets_failures_of_earlier_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node, another process of the same job may have failed before the first one begins."""
    task = toy_task(tmp_path, "ranks")
    files.write_task(task)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    files.write_rank_failure(task.folder, 1, "crashed", "early")
    files.begin_attempt(task.folder)
    assert files.first_rank_failure(task.folder) == ("crashed", "early")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    files.begin_attempt(task.folder)
    assert files.first_rank_failure(task.folder) is None, "the job was requeued"
    files.write_rank_failure(task.folder, 1, "crashed", "again")
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    files.begin_attempt(task.folder)
    assert files.first_rank_failure(task.folder) is None, "it was submitted again"
