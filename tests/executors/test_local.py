"""The local executor, on real processes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretune.executors.local import LocalExecutor, LocalOptions
from foretune.executors.outcome import TaskOutcome
from foretune.executors.process_identity import process_start
from foretune.executors.state import read_state
from foretune.executors.task import Limits, Resources, Task
from foretune.executors.task_files import read_answer, read_outcome
from tests.waiting import HANG_S, waited_until

ROOT = Path(__file__).parents[2]
MakeTask = Callable[..., Task]


@pytest.fixture(params=["copies", "fresh interpreters"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))
    options = LocalOptions(
        preload=("tests.executors.toy_worker",), fresh_interpreters=request.param != "copies", grace_s=1.0
    )
    executor = LocalExecutor(options)
    yield executor
    executor.close()


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    def make(
        do: str, name: str = "task", limits: Limits | None = None, resources: Resources | None = None, **more: Any
    ) -> Task:
        request = {"do": do, "notes": str(tmp_path / "notes.txt"), "began": str(tmp_path / f"{name}.began"), **more}
        return Task(
            name=name,
            worker="tests.executors.toy_worker",
            request={**request, "name": name},
            folder=tmp_path / "tasks" / name,
            limits=limits or Limits(),
            resources=resources or Resources(),
        )

    return make


def outcome_of(executor: LocalExecutor, task: Task) -> TaskOutcome:
    executor.submit(task)
    assert executor.ended(HANG_S) == [task.name]
    state = read_state(task.folder)
    assert state.kind == "ended"
    assert state.outcome is not None
    return state.outcome


def performed(tmp_path: Path) -> list[str]:
    path = tmp_path / "notes.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_task_is_performed_and_its_answer_kept(executor: LocalExecutor, make_task: MakeTask) -> None:
    task = make_task("square", number=7)
    outcome = outcome_of(executor, task)
    assert (outcome.kind, outcome.reason, outcome.num_attempts) == ("done", None, 1)
    assert read_answer(task.folder) == {"square": 49}
    log = (task.folder / "log.txt").read_text()
    assert log.startswith("--- attempt 1 on ")
    assert "performing square" in log


@pytest.mark.parametrize(
    ("do", "kind", "words"),
    [
        ("refuse", "refused", "train.lr: -1 is not valid"),
        ("fail_device_memory", "out of device memory", "the batch did not fit"),
        ("crash", "crashed", "ValueError: no such axis"),
        ("import_missing", "crashed", "No module named 'no_such_package'"),
        ("segfault", "crashed", "SIGSEGV"),
    ],
)
def test_how_a_task_fails_is_its_outcome(
    executor: LocalExecutor, make_task: MakeTask, do: str, kind: str, words: str
) -> None:
    outcome = outcome_of(executor, make_task(do))
    assert outcome.kind == kind
    assert words in (outcome.reason or "")


@pytest.mark.parametrize("do", ["hang", "hang_and_ignore"])
def test_a_task_beyond_its_time_is_ended_with_its_children(
    executor: LocalExecutor, make_task: MakeTask, do: str
) -> None:
    task = make_task(do, limits=Limits(seconds=0.5), child_s=60)
    outcome = outcome_of(executor, task)
    assert outcome.kind == "timed out"
    processes = [int(pid) for pid in Path(task.request["began"]).read_text().split()]
    assert len(processes) == 2
    waited_until(lambda: not any(map(process_start, processes)))
    assert not Path(f"{task.request['began']}.survived").exists(), "it was ended, and did not end by itself"


def test_host_memory_beyond_the_limit(executor: LocalExecutor, make_task: MakeTask) -> None:
    outcome = outcome_of(executor, make_task("host_memory", limits=Limits(host_bytes=2**30)))
    assert outcome.kind == "out of host memory"


def test_an_ended_task_is_not_performed_again(executor: LocalExecutor, make_task: MakeTask, tmp_path: Path) -> None:
    for _ in range(2):
        assert outcome_of(executor, make_task("crash")).kind == "crashed"
    assert performed(tmp_path) == ["task"]


def test_secrets_stay_out_of_what_an_ended_task_leaves(executor: LocalExecutor, make_task: MakeTask) -> None:
    task = make_task("crash", password="hf_abcdefghijklmnopqrstuvwx")
    outcome_of(executor, task)
    for path in (task.folder / "task.json", task.folder / "outcome.json"):
        assert "hf_abcdef" not in path.read_text()


def test_an_interrupted_task_is_performed_again(executor: LocalExecutor, make_task: MakeTask, tmp_path: Path) -> None:
    once = make_task("continue_later", name="once", times=1, count=str(tmp_path / "once"))
    assert outcome_of(executor, once).num_attempts == 2
    assert read_answer(once.folder) == {"interruptions": 1}
    often = outcome_of(executor, make_task("continue_later", name="often", times=9, count=str(tmp_path / "often")))
    assert (often.kind, often.num_attempts) == ("killed", 2)


def test_what_was_interrupted_by_closing_is_performed_by_the_next_executor(
    executor: LocalExecutor, make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task("wait_for", go=str(tmp_path / "go"))
    first = LocalExecutor(LocalOptions(grace_s=1.0))
    first.submit(task)
    waited_until(Path(task.request["began"]).exists)
    assert read_state(task.folder).kind == "running"
    first.close()
    assert read_state(task.folder).was_interrupted
    (tmp_path / "go").touch()
    assert outcome_of(executor, task).kind == "done"
    assert performed(tmp_path) == ["task", "task"]


def test_a_task_that_another_executor_runs_is_waited_for(
    executor: LocalExecutor, make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task("wait_for", go=str(tmp_path / "go"))
    first = LocalExecutor(LocalOptions())
    first.submit(task)
    waited_until(Path(task.request["began"]).exists)
    executor.submit(task)
    assert executor.ended(0.5) == []
    (tmp_path / "go").touch()
    assert executor.ended(HANG_S) == [task.name]
    assert first.ended(HANG_S) == [task.name]
    first.close()
    assert performed(tmp_path) == ["task"]


def test_stopped_tasks(executor: LocalExecutor, make_task: MakeTask) -> None:
    running, waiting = make_task("hang", name="running"), make_task("square", name="waiting", number=1)
    executor.submit(running)
    executor.submit(waiting)
    waited_until(Path(running.request["began"]).exists)
    executor.stop("waiting")
    assert executor.ended(HANG_S) == ["waiting"]
    executor.stop("running")
    assert executor.ended(HANG_S) == ["running"]
    stopped, never = read_outcome(running.folder), read_outcome(waiting.folder)
    assert stopped is not None
    assert never is not None
    assert (stopped.kind, never.kind) == ("killed", "never started")


def test_tasks_of_a_server_that_is_killed_are_performed_by_another_one(
    executor: LocalExecutor, make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task("wait_for", go=str(tmp_path / "go"))
    executor.submit(task)
    waited_until(Path(task.request["began"]).exists)
    state = read_state(task.folder)
    assert state.attempt is not None
    executor._server.kill()
    waited_until(lambda: read_state(task.folder).kind == "waiting")
    (tmp_path / "go").touch()
    assert executor.ended(HANG_S) == [task.name]
    outcome = read_outcome(task.folder)
    assert outcome is not None
    assert (outcome.kind, outcome.num_attempts) == ("done", 2)


def test_imports_that_start_threads_are_not_copied(
    make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True, name='busy').start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT), str(tmp_path))))
    executor = LocalExecutor(LocalOptions(preload=("starts_a_thread", "no_such_module")))
    assert outcome_of(executor, make_task("square", number=1)).kind == "done"
    missing, threads = executor.notes
    assert missing == "no_such_module could not be imported: ModuleNotFoundError: No module named 'no_such_module'"
    assert threads == (
        "Tasks import everything themselves: imports started threads (busy), which a copy would not have."
    )
    executor.close()


def test_copies_and_fresh_interpreters_are_what_they_are_called(
    executor: LocalExecutor, make_task: MakeTask, request: pytest.FixtureRequest
) -> None:
    task = make_task("environment")
    assert outcome_of(executor, task).kind == "done"
    answer = read_answer(task.folder)
    assert answer["session"] == answer["pid"], "each task leads a session of its own"
    is_copy = "foretune.executors.local_server" in answer["modules"] or answer["main"].endswith("local_server.py")
    assert is_copy == (request.node.callspec.params["executor"] == "copies")


def test_threads_and_handlers_of_a_task_come_to_their_end(executor: LocalExecutor, make_task: MakeTask) -> None:
    task = make_task("leaves_orderly")
    assert outcome_of(executor, task).kind == "done"
    assert Path(task.request["began"]).read_text() == "thread handler"


def test_a_server_that_cannot_run_is_reported_with_what_it_printed(
    make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ends_the_process.py").write_text("import os\nprint('no room for me', flush=True)\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT), str(tmp_path))))
    executor = LocalExecutor(LocalOptions(preload=("ends_the_process",)))
    with pytest.raises(RuntimeError, match=r"(?s)ended 4 times, now with code 7.*no room for me"):
        outcome_of(executor, make_task("square", number=1))
    assert capfd.readouterr() == ("", "")
