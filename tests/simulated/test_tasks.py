"""Tasks of an executor on simulated GPUs: copies of a process that has imported everything, each on its own device."""

import os
from pathlib import Path
from typing import Any

import pytest

from foretune.executors import local
from foretune.executors.local import LocalExecutor, LocalOptions, visible_devices
from foretune.executors.task import Resources, Task
from foretune.executors.task_files import read_answer, read_outcome
from foretune.record.accelerators import Accelerator
from tests.waiting import HANG_S

pytestmark = pytest.mark.simulated
ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment for processes that see simulated devices and can import tests."""
    paths = (str(ROOT / folder) for folder in ("src", "simaccel/src", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def run_tasks(executor: LocalExecutor, folder: Path, num: int) -> list[Task]:
    tasks = [
        Task(
            name=f"task-{number}",
            worker="tests.simulated.device_worker",
            request={},
            folder=folder / f"task-{number}",
            resources=Resources(num_devices=1),
        )
        for number in range(num)
    ]
    for task in tasks:
        executor.submit(task)
    left = {task.name for task in tasks}
    while left:
        left -= set(executor.ended(HANG_S))
    executor.close()
    return tasks


def answers(tasks: list[Task]) -> list[dict[str, Any]]:
    outcomes = [read_outcome(task.folder) for task in tasks]
    assert {outcome.kind for outcome in outcomes if outcome is not None} == {"done"}, outcomes
    return [read_answer(task.folder) for task in tasks]


def test_tasks_are_copies_that_see_their_device(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process that imports diffusers, and with it torchao, does not initialise CUDA."""
    machine.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    executor = LocalExecutor(LocalOptions(preload=("foretune.sweeps.preloaded",)))
    assert executor.num_slots == 2
    found = answers(run_tasks(executor, tmp_path, 4))
    assert executor.notes == []
    assert [(one["is_preloaded"], one["num_visible"], one["sum"]) for one in found] == [(True, 1, 6.0)] * 4
    assert len({one["uuid"] for one in found}) == 2


def test_a_container_that_shows_one_of_eight_cards(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight MI300X are in the machine, as its kernel lists them, and SLURM gave one to this process."""
    machine.setattr(local, "accelerators_here", lambda: [Accelerator("AMD Instinct MI300X", "rocm", 2**37)] * 8)
    machine.setenv("SIMACCEL", "mi300x")
    machine.setenv("SIMACCEL_DEVICES", "8")
    machine.setenv("ROCR_VISIBLE_DEVICES", "5")
    assert visible_devices(os.environ) == (["0"], "HIP_VISIBLE_DEVICES")
    (found,) = answers(run_tasks(LocalExecutor(), tmp_path, 1))
    assert (found["num_visible"], found["sum"]) == (1, 6.0)


def test_a_task_that_sees_no_device_does_not_train_on_the_cpu(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(local, "visible_devices", lambda variables: (["5"], "HIP_VISIBLE_DEVICES"))
    machine.setenv("SIMACCEL", "mi300x")
    machine.setenv("SIMACCEL_DEVICES", "1")
    (task,) = run_tasks(LocalExecutor(), tmp_path, 1)
    outcome = read_outcome(task.folder)
    assert outcome is not None
    assert outcome.kind == "refused"
    assert "torch sees none (HIP_VISIBLE_DEVICES=5)" in (outcome.reason or "")
