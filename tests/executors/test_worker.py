"""The worker program by itself: whoever starts it, and however often."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foretune.executors import task_files as files
from foretune.executors import worker
from foretune.executors.node_program import TaskOnNode
from foretune.executors.outcome import TaskOutcome
from foretune.executors.task import Limits, Task
from foretune.executors.task_lock import release_lock, take_lock
from foretune.executors.worker import RANK_VARIABLE
from tests.executors.cluster_tasks import times_performed, toy_task
from tests.waiting import HANG_S, waited_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))


def work(task: Task, **variables: str) -> int:
    command = [sys.executable, "-P", "-m", "foretune.executors.worker", str(task.folder)]
    answer = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=False)
    return answer.returncode


def written(folder: Path, do: str, name: str = "task", **more: object) -> Task:
    task = toy_task(folder, do, name, **more)  # type: ignore[arg-type]
    files.write_task(task)
    return task


def test_it_performs_a_task_once(tmp_path: Path) -> None:
    task = written(tmp_path, "square", number=3)
    assert [work(task), work(task)] == [0, 0]
    assert times_performed(tmp_path) == {"task": 1}
    assert files.read_answer(task.folder) == {"square": 9}


def test_it_leaves_a_task_alone_that_another_process_holds(tmp_path: Path) -> None:
    task = written(tmp_path, "square", number=3)
    assert take_lock(task.folder)
    assert work(task) == 0
    assert times_performed(tmp_path) == {}
    release_lock(task.folder)
    assert work(task) == 0
    assert times_performed(tmp_path) == {"task": 1}


def test_it_does_not_perform_what_was_predicted(tmp_path: Path) -> None:
    task = written(tmp_path, "square", number=3)
    files.write_outcome(task.folder, TaskOutcome(kind="predicted not to fit", reason="It needs 30 GiB of 24 GiB."))
    assert work(task) == 0
    assert times_performed(tmp_path) == {}


def test_memory_beyond_the_limit_is_reported_although_none_is_left(tmp_path: Path) -> None:
    task = written(tmp_path, "host_memory", limits=Limits(host_bytes=2**29))
    assert work(task) == 1
    outcome = files.read_outcome(task.folder)
    assert outcome is not None
    assert outcome.kind == "out of host memory"


def test_an_answer_that_is_not_json_is_a_crash(tmp_path: Path) -> None:
    task = written(tmp_path, "not_json")
    assert work(task) == 1
    outcome = files.read_outcome(task.folder)
    assert outcome is not None
    assert (outcome.kind, "TypeError" in (outcome.reason or "")) == ("crashed", True)


def test_of_several_processes_the_first_one_keeps_the_files(tmp_path: Path) -> None:
    task = written(tmp_path, "square", number=3)
    assert work(task, **{RANK_VARIABLE: "1"}) == 0
    assert files.read_outcome(task.folder) is None
    failing = written(tmp_path, "crash", "failing")
    assert work(failing, **{RANK_VARIABLE: "2"}) == 1
    assert files.first_rank_failure(failing.folder) == (
        "crashed",
        "Process 2: ValueError: no such axis; token=[redacted]",
    )
    assert work(task) == 0
    assert files.first_rank_failure(task.folder) is None


@pytest.mark.parametrize(("do", "kind"), [("square", "done"), ("segfault", "crashed"), ("hang", "timed out")])
def test_a_node_records_what_its_worker_could_not(tmp_path: Path, do: str, kind: str) -> None:
    task = written(tmp_path, do, number=3, limits=Limits(seconds=1.0 if do == "hang" else None))
    assert TaskOnNode(task.folder, grace_s=1.0).run() == "ended"
    outcome = files.read_outcome(task.folder)
    assert outcome is not None
    assert outcome.kind == kind


def test_the_process_that_failed_first_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "task"
    task = written(tmp_path, "another_failed", own_folder=str(folder), cause="Process 1: no memory")
    assert work(task) == 1
    outcome = files.read_outcome(task.folder)
    assert outcome is not None
    assert (outcome.kind, outcome.reason) == ("out of device memory", "Process 1: no memory")


def test_where_no_process_says_why_its_node_is_lost_and_the_task_is_performed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_CAUSE_S", 0.0)
    task = written(tmp_path, "another_failed")
    assert worker.work(task.folder) == 1
    assert files.read_outcome(task.folder) is None
    assert files.read_interruption(task.folder, 1) == "the connection to another process was closed"
    # As a process beside the first one it is not the cause either.
    assert work(task, **{RANK_VARIABLE: "1"}) == 1
    assert files.first_rank_failure(task.folder) is None


def test_a_node_says_why_its_process_could_not(tmp_path: Path) -> None:
    task = written(tmp_path, "own_signal", signal="SIGKILL")
    with pytest.raises(SystemExit):
        TaskOnNode(task.folder, 1).run()
    failure = files.first_rank_failure(task.folder)
    assert failure is not None
    assert failure[0] == "killed"
    assert failure[1].startswith("Process 1: The process was ended by SIGKILL.")


def test_a_process_beside_the_first_one_leaves_when_the_task_has_ended(tmp_path: Path) -> None:
    """The launcher would end the first one, which evaluates, a while after another one has left."""
    task = written(tmp_path, "square", number=3)
    assert take_lock(task.folder)
    files.begin_attempt(task.folder)
    beside = subprocess.Popen([sys.executable, "-c", _BESIDE, str(task.folder)])
    waited_until(lambda: times_performed(tmp_path) == {"task": 1})
    # It has looked after its worker ended: it still waits.
    with pytest.raises(subprocess.TimeoutExpired):
        beside.wait(0.5)
    files.write_outcome(task.folder, TaskOutcome(kind="done"))
    assert beside.wait(HANG_S) == 0
    release_lock(task.folder)


_BESIDE = """
import sys
from pathlib import Path
from foretune.executors.node_program import TaskOnNode
TaskOnNode(Path(sys.argv[1]), 1).run()
"""
