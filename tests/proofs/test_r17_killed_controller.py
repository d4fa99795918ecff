"""R17: a controller is killed again and again, and started again. No task is lost, doubled or stuck."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.executors.process_identity import is_alive
from foretune.executors.state import read_state
from foretune.executors.task_files import read_answer, read_attempts, read_outcome
from tests.conftest import ProofSize
from tests.executors.cluster_tasks import times_performed
from tests.waiting import HANG_S, waited_until

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]


def started(folder: Path, num_tasks: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.executors.controller_program", str(folder), str(num_tasks)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        cwd=ROOT,
    )


def num_begun(folder: Path) -> int:
    return sum(times_performed(folder).values())


def wait_for_begun(folder: Path, num: int, controller: "subprocess.Popen[bytes]") -> None:
    waited_until(lambda: num_begun(folder) >= num or controller.poll() is not None)


def processes_left(folder: Path) -> list[int]:
    """Workers that live although their controller does not."""
    attempts = (attempt for task in folder.glob("tasks/*") for attempt in read_attempts(task))
    return [one.pid for one in attempts if is_alive(one.host, one.boot, one.pid, one.process_start)]


def test_r17_a_killed_controller_loses_and_doubles_nothing(
    tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num_kills, random_draws = proof_size(50, 5), random.Random(17)
    num_tasks = 4 * num_kills
    num_while_running = 0
    for _ in range(num_kills):
        before = num_begun(tmp_path)
        controller = started(tmp_path, num_tasks)
        more = random_draws.randrange(1, 5)
        wait_for_begun(tmp_path, before + more, controller)
        # Somewhere inside of a task, between two, or while an outcome is written.
        time.sleep(random_draws.random() * 0.05)
        num_while_running += bool(processes_left(tmp_path))
        controller.kill()
        controller.wait()
        waited_until(lambda: not processes_left(tmp_path))
    assert started(tmp_path, num_tasks).wait(timeout=HANG_S) == 0

    folders = [tmp_path / "tasks" / f"task-{number}" for number in range(num_tasks)]
    outcomes = [read_outcome(folder) for folder in folders]
    lost = [folder.name for folder, outcome in zip(folders, outcomes, strict=True) if outcome is None]
    doubled = [folder.name for folder in folders if (folder / "doubled").exists()]
    stuck = [folder.name for folder in folders if read_state(folder).kind != "ended"]
    report_figure(
        f"{num_kills} kills, {num_while_running} of them while a task ran: {len(lost)} of {num_tasks} tasks lost, "
        f"{len(doubled)} doubled, {len(stuck)} stuck, {num_begun(tmp_path) - num_tasks} interrupted and performed again"
    )
    assert lost == doubled == stuck == []
    assert num_while_running > 0
    assert [read_answer(folder) for folder in folders] == [{"square": number**2} for number in range(num_tasks)]
    assert {outcome.kind for outcome in outcomes if outcome is not None} == {"done"}
