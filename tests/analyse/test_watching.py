"""What runs in a folder, from its files: nobody who is gone counts as running, and nobody who works as gone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.watching import watched_run as one_run
from foretune.analyse.watching.watched_run import SILENT_AFTER_S
from foretune.analyse.watching.watcher import Watched, Watcher
from foretune.core.values import Plan
from foretune.executors.outcome import TaskOutcome
from foretune.executors.process_identity import own_identity
from foretune.executors.task import Task
from foretune.executors.task_files import write_outcome, write_task
from foretune.record.event_tail import TAIL_BYTES, first_event_s, last_events, last_step
from foretune.record.locking import is_held, is_of_this_machine, locked
from foretune.record.run_directory import RunDirectory
from tests.analyse.made_runs import asked, make_run
from tests.reports.whole_runs import plan
from tests.virtual_clock import VirtualClock
from tests.work_counts import files_opened

HOLDS = """
import sys
from pathlib import Path
from foretune.record.locking import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def clock() -> VirtualClock:
    made = VirtualClock()
    made.advance(10_000.0)
    return made


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Another process that holds a run's lock until it is killed."""
    holders: list[subprocess.Popen[str]] = []

    def start(run: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDS, str(run / "run.lock")]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def recorded(
    path: Path, clock: VirtualClock, *, num_steps: int = 40, step_s: float = 2.0, made: Plan | None = None, **train: Any
) -> Path:
    """A run whose steps ended just now by this clock, without a record."""
    experiment = asked(train={"steps": 100, "batch_size": 4, **train})
    make_run(path, [], experiment=experiment, status=None, effective={"num_steps": 100})
    began_s = clock() - num_steps * step_s
    events: list[dict[str, Any]] = [{"time_s": began_s, "kind": "started", "first_step": 0, "environment": {}}]
    for step in range(num_steps):
        memory = {"host": 2**30 + step}
        events.append(
            {"time_s": began_s + (step + 1) * step_s, "kind": "step", "step": step, "loss": 1 / (step + 1),
             "step_s": step_s, "memory_bytes": memory}
        )  # fmt: skip
    write_events(path, events)
    RunDirectory(path).write_plan(made)
    return path


def write_events(path: Path, events: list[dict[str, Any]]) -> None:
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def lock_of_another_machine(path: Path) -> None:
    (path / "run.lock").write_text('{"machine": "0123456789abcdef", "pid": 1}')
    os.utime(path / "run.lock", (1.0, 1.0))


def look(folder: Path, clock: VirtualClock, price: float | None = None) -> Watched:
    return Watcher(folder, price, clock).look()


def test_a_run_whose_lock_is_held_runs(
    tmp_path: Path, clock: VirtualClock, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    run = recorded(tmp_path / "runs" / "a", clock, made=plan(3 * 2**30))
    hold(run)
    os.utime(run / "run.lock", (clock() - 90.0, clock() - 90.0))
    found = look(tmp_path / "runs", clock, price=3.6)
    (running,) = found.running
    assert (running.steps_done, running.num_steps, running.loss) == (40, 100, 1 / 40)
    assert running.samples_per_s == 2.0
    assert (running.memory_bytes, running.planned_memory_bytes) == (2**30 + 39, 3 * 2**30)
    assert running.elapsed_s == pytest.approx(80.0)
    assert running.left_s == pytest.approx(60 * 2.0)
    assert running.usd == pytest.approx(0.08)
    assert found.left_s == running.left_s
    # It may be in a step that takes an hour: whoever holds the lock is alive.
    clock.advance(7200.0)
    assert [run.path for run in look(tmp_path / "runs", clock).running] == ["a"]


def test_a_killed_run_never_counts_as_running(
    tmp_path: Path, clock: VirtualClock, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    run = recorded(tmp_path / "runs" / "a", clock)
    holder = hold(run)
    watcher = Watcher(tmp_path / "runs", None, clock)
    assert len(watcher.look().running) == 1
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    found = watcher.look()
    assert not found.running
    (silent,) = found.silent
    assert silent.last_sign_s == pytest.approx(clock()), "though its log is a moment old"
    assert silent.left_s is None
    assert found.is_over


def test_a_run_of_another_machine_runs_while_it_shows_that_it_lives(tmp_path: Path, clock: VirtualClock) -> None:
    lock_of_another_machine(recorded(tmp_path / "runs" / "a", clock))
    assert len(look(tmp_path / "runs", clock).running) == 1
    clock.advance(SILENT_AFTER_S - 1)
    assert len(look(tmp_path / "runs", clock).running) == 1
    clock.advance(2.0)
    found = look(tmp_path / "runs", clock)
    assert not found.running
    assert found.silent[0].last_sign_s == pytest.approx(clock() - SILENT_AFTER_S - 1)


def test_slow_steps_of_another_machine_are_no_silence(tmp_path: Path, clock: VirtualClock) -> None:
    lock_of_another_machine(recorded(tmp_path / "runs" / "a", clock, step_s=100.0))
    clock.advance(400.0)
    assert len(look(tmp_path / "runs", clock).running) == 1
    clock.advance(200.0)
    assert len(look(tmp_path / "runs", clock).silent) == 1


def test_a_lock_is_looked_at_without_touching_it(tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]) -> None:
    lock = tmp_path / "run.lock"
    assert is_held(lock) is False
    holder = hold(tmp_path)
    before = lock.read_bytes()
    assert [is_held(lock), is_held(lock), is_of_this_machine(lock)] == [True, True, True]
    holder.kill()
    holder.wait()
    assert is_held(lock) is False
    with locked(lock):
        # Opening and closing the file would give the lock away.
        assert is_held(lock)
        assert is_of_this_machine(lock)
        asked_outside = subprocess.run(
            [sys.executable, "-c", HOLDS, str(lock)], capture_output=True, text=True, check=False, input=""
        )
    assert "is being written by another process" in asked_outside.stderr
    assert set(json.loads(before)) == {"machine", "pid"}


def test_a_second_process_does_not_empty_the_lock_of_the_first(
    tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    hold(tmp_path)
    content = (tmp_path / "run.lock").read_text()
    with pytest.raises(Exception, match="another process"), locked(tmp_path / "run.lock"):
        pytest.fail("the lock was given twice")
    assert (tmp_path / "run.lock").read_text() == content != ""


def test_steps_that_a_resume_makes_again_count_once(tmp_path: Path, clock: VirtualClock) -> None:
    run = recorded(tmp_path / "runs" / "a", clock)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    again = [
        {"time_s": clock(), "kind": "started", "first_step": 10, "environment": {}},
        {**events[11], "time_s": clock() + 1, "loss": 0.5},
    ]
    write_events(run, [*events, *again])
    lock_of_another_machine(run)
    (running,) = look(tmp_path / "runs", clock).running
    assert (running.steps_done, running.loss) == (11, 0.5)


def test_validations_between_steps_are_in_the_time_left(tmp_path: Path, clock: VirtualClock) -> None:
    run = recorded(tmp_path / "runs" / "a", clock)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    # Half of the time passes between the steps.
    for number, event in enumerate(events[1:], start=1):
        event["time_s"] = clock() - 160.0 + number * 4.0
    write_events(run, events)
    lock_of_another_machine(run)
    (running,) = look(tmp_path / "runs", clock).running
    assert running.left_s == pytest.approx(60 * 4.0)
    assert running.samples_per_s == 2.0


def test_a_run_with_a_time_budget_ends_when_it_is_used(tmp_path: Path, clock: VirtualClock) -> None:
    run = recorded(tmp_path / "runs" / "a", clock, steps=None, seconds=200.0)
    lock_of_another_machine(run)
    (running,) = look(tmp_path / "runs", clock).running
    assert running.num_steps is None
    assert running.left_s == pytest.approx(120.0)


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path, clock: VirtualClock) -> None:
    run = recorded(tmp_path / "runs" / "a", clock)
    content = (run / "events.jsonl").read_bytes()
    first, rest = content.split(b"\n", 1)
    filler = (json.dumps({"time_s": 1.0, "kind": "telemetry", "read_s": 1.0}) + "\n").encode() * 200_000
    (run / "events.jsonl").write_bytes(first + b"\n" + filler + rest)
    read: list[int] = []

    def counting(path: Path, most_bytes: int = TAIL_BYTES) -> Any:
        read.append(most_bytes)
        return last_events(path, most_bytes)

    assert (run / "events.jsonl").stat().st_size > 100 * TAIL_BYTES
    assert last_step(run / "events.jsonl") == 40
    assert first_event_s(run / "events.jsonl") == pytest.approx(clock() - 80.0)
    lock_of_another_machine(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_run, "last_events", counting)
        (running,) = look(tmp_path / "runs", clock).running
    assert running.steps_done == 40
    assert sum(read) <= 2**20 + TAIL_BYTES


def test_a_long_validation_leaves_the_steps_in_sight(tmp_path: Path, clock: VirtualClock) -> None:
    run = recorded(tmp_path / "runs" / "a", clock)
    sensors = {"time_s": clock(), "kind": "telemetry", "read_s": clock(), "host": {"x" * 100: 1}}
    with (run / "events.jsonl").open("a") as file:
        file.write((json.dumps(sensors) + "\n") * 1000)
    lock_of_another_machine(run)
    assert look(tmp_path / "runs", clock).running[0].steps_done == 40


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\xff\xfe\n",
        b'{"time_s": 1, "kind": "step"}\n',
        b'{"time_s": 9999, "kind": "step", "step": -1, "step_s": "x", "loss": []}\n[1]\n"text"\n',
        b'{"time_s": 9999, "kind": "step", "step": 3, "step_s": 0, "loss": 1}\n',
        b"[" * 100_000 + b"\n",
        b'{"time_s": NaN, "kind": "started", "first_step": "many"}\n',
    ],
)
def test_a_log_that_is_nonsense_is_no_reason_to_stop(content: bytes, tmp_path: Path, clock: VirtualClock) -> None:
    run = recorded(tmp_path / "runs" / "a", clock)
    (run / "events.jsonl").write_bytes(content)
    found = look(tmp_path / "runs", clock)
    assert found.num_all == 1
    assert all(run.steps_done is None for run in (*found.running, *found.silent))


def test_a_run_that_cannot_be_read_is_named(tmp_path: Path, clock: VirtualClock) -> None:
    run = recorded(tmp_path / "runs" / "a", clock)
    (run / "plan.json").write_text("{")
    recorded(tmp_path / "runs" / "b", clock)
    found = look(tmp_path / "runs", clock)
    assert found.num_by_status == {"unreadable": 1}
    assert "plan.json" in str(found.failures[0].reason)
    assert len(found.running) == 1, "the other is seen: without a lock, its log says that it lives"


def test_what_failed_is_shown_with_its_last_lines(tmp_path: Path, clock: VirtualClock) -> None:
    run = make_run(tmp_path / "runs" / "a", [0.1], status="failed")
    with (run / "events.jsonl").open("a") as file:
        lines = "\n".join(f"line {number}" for number in range(9))
        file.write(json.dumps({"time_s": clock(), "kind": "crashed", "traceback": lines}) + "\n")
    (failure,) = look(tmp_path / "runs", clock).failures
    assert (failure.path, failure.status) == ("a", "failed")
    assert failure.log_lines == tuple(f"line {number}" for number in range(4, 9))


def trial(folder: Path, *, attempt: dict[str, Any] | None = None) -> Path:
    write_task(Task(name=folder.name, worker="foretune.sweeps.trial_worker", request={}, folder=folder))
    if attempt is not None:
        (folder / "attempts").mkdir()
        fields = {"number": 1, "submission": "s", "slurm_job": None, "started_at": 9_990.0, **attempt}
        (folder / "attempts" / "1.json").write_text(json.dumps(fields))
    return folder


def test_trials_wait_run_and_end(
    tmp_path: Path, clock: VirtualClock, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    trials = tmp_path / "sweep" / "trials"
    trial(trials / "waits")
    elsewhere = {"host": "node-7", "boot": None, "pid": 1, "process_start": None}
    preparing, running, gone = (
        trial(trials / name, attempt=elsewhere if name == "gone" else own_identity())
        for name in ("prepares", "runs", "gone")
    )
    recorded(running / "run", clock)
    recorded(gone / "run", clock)
    for folder in (preparing, running):
        hold(folder)
        (folder / "run.lock").rename(folder / "task.lock")
    failed, done = trial(trials / "fails"), trial(trials / "done")
    write_outcome(failed, TaskOutcome(kind="out of host memory", reason="SIGKILL", log_lines=("a", "b"), seconds=36.0))
    write_outcome(done, TaskOutcome(kind="done", seconds=100.0))
    # What a sweep measures before its trials is none of them.
    (tmp_path / "sweep" / "sweep.yaml").write_text("{}")
    write_outcome(trial(tmp_path / "sweep" / "baseline"), TaskOutcome(kind="done", seconds=1000.0))
    found = look(tmp_path / "sweep", clock, price=100.0)
    assert found.waiting == ("trials/waits",)
    assert found.preparing == ("trials/prepares",)
    assert [run.path for run in found.running] == ["trials/runs/run"]
    assert [run.path for run in found.silent] == ["trials/gone/run"], "its lock is not held"
    assert found.num_by_status == {"out of host memory": 1, "done": 1}
    assert found.failures[0].log_lines == ("a", "b")
    ended_usd = 100.0 * 136 / 3600
    assert found.spent_usd == pytest.approx(ended_usd + 100.0 * 160 / 3600)
    # 120 s of the one that runs, 100 s each of the two others, on two at a time.
    assert found.left_s == pytest.approx(160.0)
    assert not found.is_over


def test_what_has_not_changed_is_not_opened_again(tmp_path: Path, clock: VirtualClock) -> None:
    for number in range(5):
        make_run(tmp_path / "runs" / str(number), [0.1])
    for path in (tmp_path / "runs").rglob("*"):
        os.utime(path, (1.0, 1.0))
    watcher = Watcher(tmp_path / "runs", None, clock)
    watcher.look()
    opened = [name for name in files_opened(watcher.look) if Path(name).suffix in (".json", ".jsonl", ".yaml")]
    assert opened == []
    make_run(tmp_path / "runs" / "5", [0.1])
    assert watcher.look().num_ended == 6


def test_a_training_in_another_process_is_seen_from_its_first_step_to_its_end(
    tmp_path: Path, tiny_pipeline: Callable[..., Path]
) -> None:
    script = (
        "import sys, foretune\n"
        "class Held(foretune.Observer):\n"
        "    patience_s = 0.0\n"
        "    def stepped(self, report):\n"
        "        if report.step == 2: print('held', flush=True); sys.stdin.readline()\n"
        "foretune.train({'model': sys.argv[1], 'data': {'kind': 'shapes', 'num_samples': 8, 'resolution': 32,\n"
        "    'cache_dir': sys.argv[2] + '/cache'}, 'save': {'every': 2}, 'train': {'steps': 6, 'batch_size': 2}},\n"
        "    runs=sys.argv[2] + '/runs', observer=Held())\n"
    )
    command = [sys.executable, "-c", script, str(tiny_pipeline("ddpm")), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            watcher = Watcher(tmp_path / "runs", 2.0)
            # The checkpoint after the second step has written the log up to there; the run is held in its third step.
            (running,) = watcher.look().running
            assert running.num_steps == 6
            assert running.steps_done == 2
            assert running.planned_memory_bytes
            assert running.usd
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.close()
            process.stdin = None
            assert process.wait() == 0
        finally:
            process.kill()
    found = watcher.look()
    assert found.num_by_status == {"finished": 1}
    assert found.is_over
