"""R16: of 50 tasks 25 have faults. Each fault is classified, and the other tasks end as they would without."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.executors.executor import open_executor
from foretune.executors.task import Limits, Task
from foretune.executors.task_files import read_answer, read_outcome
from tests.conftest import ProofSize
from tests.executors.cluster_tasks import times_performed, toy_task
from tests.waiting import HANG_S

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
FAULTS = {
    "host_memory": "out of host memory",
    "lookalike_device_memory": "out of device memory",
    "segfault": "crashed",
    "own_signal": "killed",
    "hang": "timed out",
    "import_missing": "crashed",
    "exit_code": "crashed",
}


def faulty_task(folder: Path, fault: str, number: int) -> Task:
    limits = {
        "hang": Limits(seconds=2.0),
        "host_memory": Limits(host_bytes=2**30),
    }
    more: dict[str, Any] = {"signal": "SIGKILL", "code": 3}
    return toy_task(folder, fault, f"{fault}-{number}", limits=limits.get(fault, Limits()), **more)


def test_r16_faults_are_classified_and_leave_other_tasks_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))
    num_faults = proof_size(25, len(FAULTS))
    executor = open_executor("local", {"jobs": 2, "preload": ["tests.executors.toy_worker"], "grace_s": 1.0})
    kinds = {}
    for number in range(num_faults):
        fault = list(FAULTS)[number % len(FAULTS)]
        task = faulty_task(tmp_path, fault, number)
        kinds[task.name] = FAULTS[fault]
        executor.submit(task)
        executor.submit(toy_task(tmp_path, "square", f"square-{number}", number=number))
    left = {*kinds, *(f"square-{number}" for number in range(num_faults))}
    while left:
        ended = executor.ended(HANG_S)
        assert ended, f"{left} do not end"
        left -= set(ended)
    executor.close()

    outcomes = {name: read_outcome(tmp_path / "tasks" / name) for name in kinds}
    wrong = {name: outcome for name, outcome in outcomes.items() if outcome is None or outcome.kind != kinds[name]}
    squares = [read_answer(tmp_path / "tasks" / f"square-{number}") for number in range(num_faults)]
    report_figure(f"{num_faults - len(wrong)} of {num_faults} faults classified, {len(squares)} other tasks unaffected")
    assert wrong == {}
    assert squares == [{"square": number**2} for number in range(num_faults)]
    assert set(times_performed(tmp_path).values()) == {1}
