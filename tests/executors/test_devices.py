"""Which task gets which device of this machine."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from foretune.executors import local
from foretune.executors.local import LocalExecutor, LocalOptions, visible_devices
from foretune.executors.slots import Slots
from foretune.executors.task import Resources
from foretune.executors.task_files import read_answer, read_outcome
from foretune.record.accelerators import Accelerator
from tests.executors.cluster_tasks import toy_task
from tests.waiting import HANG_S, waited_until

ROOT = Path(__file__).parents[2]


def pretend(monkeypatch: pytest.MonkeyPatch, num: int, kind: str = "cuda") -> None:
    found = [Accelerator("a device", kind, 2**34) for _ in range(num)]  # type: ignore[arg-type]
    monkeypatch.setattr(local, "accelerators_here", lambda: found)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))
    monkeypatch.setattr(local, "_num_seen_by_torch", lambda variables, unless_known: num)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_slots() -> None:
    slots = Slots(["0", "1", "2"], 1)
    two, one = slots.take(Resources(num_devices=2)), slots.take(Resources(num_devices=1))
    assert two is not None
    assert one is not None
    assert (two.devices, one.devices) == (("0", "1"), ("2",))
    assert slots.take(Resources(num_devices=1)) is None
    cpu = slots.take(Resources())
    assert cpu is not None
    assert slots.take(Resources()) is None
    slots.give_back(two)
    slots.give_back(cpu)
    again = slots.take(Resources(num_devices=1))
    assert again is not None
    assert again.devices == ("0",)
    assert slots.can_ever_hold(Resources(num_devices=3))
    assert not slots.can_ever_hold(Resources(num_devices=4))
    assert not slots.can_ever_hold(Resources(num_nodes=2))


def test_devices_are_taken_in_the_order_in_which_they_are_listed() -> None:
    slots = Slots([str(number) for number in range(12)], 1)
    taken = [slots.take(Resources(num_devices=1)) for _ in range(12)]
    for slot in reversed(taken):
        assert slot is not None
        slots.give_back(slot)
    assert slots.devices == [str(number) for number in range(12)]


@pytest.mark.parametrize(
    ("kind", "variables", "devices", "variable"),
    [
        ("cuda", {}, ["0", "1"], "CUDA_VISIBLE_DEVICES"),
        ("rocm", {}, ["0", "1"], "HIP_VISIBLE_DEVICES"),
        ("mps", {}, ["0", "1"], "CUDA_VISIBLE_DEVICES"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "3, 5"}, ["3", "5"], "CUDA_VISIBLE_DEVICES"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, ["GPU-8932f937"], "CUDA_VISIBLE_DEVICES"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, [], "CUDA_VISIBLE_DEVICES"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, [], "CUDA_VISIBLE_DEVICES"),
        ("rocm", {"CUDA_VISIBLE_DEVICES": "1"}, ["1"], "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_devices_that_tasks_may_use(
    monkeypatch: pytest.MonkeyPatch, kind: str, variables: Mapping[str, str], devices: list[str], variable: str
) -> None:
    pretend(monkeypatch, 2, kind)
    assert visible_devices(variables) == (devices, variable)


def test_tasks_run_at_once_each_on_its_own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2)
    executor = LocalExecutor(LocalOptions(grace_s=1.0))
    assert executor.num_slots == 2
    tasks = [
        toy_task(tmp_path, "wait_for", f"task-{n}", go=str(tmp_path / "go"), resources=Resources(num_devices=1))
        for n in range(2)
    ]
    tasks.append(toy_task(tmp_path, "environment", "cpu"))
    for task in tasks:
        executor.submit(task)
    waited_until(lambda: all(Path(task.request["began"]).exists() for task in tasks[:2]))
    (tmp_path / "go").touch()
    left = {task.name for task in tasks}
    while left:
        left -= set(executor.ended(HANG_S))
    devices = [read_answer(task.folder)["devices"] for task in tasks[:2]]
    assert sorted(devices) == ["0", "1"]
    assert read_answer(tasks[2].folder)["variables"]["CUDA_VISIBLE_DEVICES"] == "", "a task on the CPU sees none"
    executor.close()


def test_a_task_that_this_machine_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1)
    executor = LocalExecutor(LocalOptions())
    task = toy_task(tmp_path, "square", resources=Resources(num_devices=8))
    executor.submit(task)
    assert executor.ended(HANG_S) == ["task"]
    outcome = read_outcome(task.folder)
    assert outcome is not None
    assert outcome.kind == "refused"
    assert outcome.reason == (
        "The task needs 8 accelerators, and the local executor has 1 accelerator. "
        "Run: foretune sweep ... --executor slurm"
    )
    executor.close()


def test_a_task_with_a_number_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0)
    executor = LocalExecutor(LocalOptions(jobs=2))
    assert executor.num_slots == 2
    executor.submit(toy_task(tmp_path, "environment", resources=Resources(num_cpus=3)))
    assert executor.ended(HANG_S) == ["task"]
    assert read_answer(tmp_path / "tasks" / "task")["variables"]["OMP_NUM_THREADS"] == "3"
    executor.close()
