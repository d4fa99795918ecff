"""Copies of a process that has imported everything: the same results as fresh interpreters, and next to no overhead."""

import gc
import os
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.executors.local import LocalExecutor, LocalOptions
from foretune.executors.task import Task
from foretune.executors.task_files import read_answer, read_outcome
from foretune.record.run_directory import RunDirectory
from tests.conftest import ProofSize
from tests.executors.cluster_tasks import toy_task
from tests.training.short_runs import short_mapping
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
LIBRARIES = ("foretune.training.train", "tests.executors.training_worker", "tests.executors.toy_worker")
MOST_OVERHEAD_S = 2.5
MOST_GROWTH_BYTES = 16 * 1024


@pytest.fixture(autouse=True)
def _tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def training_task(folder: Path, name: str, asked: dict[str, Any]) -> Task:
    request = {"asked": asked, "runs": str(folder / name / "runs")}
    return Task(name=name, worker="tests.executors.training_worker", request=request, folder=folder / name)


def answers(executor: LocalExecutor, tasks: list[Task]) -> list[dict[str, Any]]:
    for task in tasks:
        executor.submit(task)
    left = {task.name for task in tasks}
    while left:
        left -= set(executor.ended(HANG_S))
    executor.close()
    for task in tasks:
        outcome = read_outcome(task.folder)
        assert outcome is not None
        assert outcome.kind == "done", outcome
    return [read_answer(task.folder) for task in tasks]


def test_copies_train_bit_for_bit_what_fresh_interpreters_train(
    tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    asked = short_mapping(tiny_pipeline("ddpm"), tmp_path, "full", save={"every": 3, "keep": 1})
    other = short_mapping(tiny_pipeline("ddpm"), tmp_path, "full", save={"every": 3, "keep": 1}, train={"seed": 1})
    tasks = [training_task(tmp_path, name, asked) for name in ("first-copy", "second-copy")]
    control = training_task(tmp_path, "control", other)
    *copies, different = answers(LocalExecutor(LocalOptions(preload=LIBRARIES)), [*tasks, control])
    fresh = answers(LocalExecutor(LocalOptions(fresh_interpreters=True)), [training_task(tmp_path, "fresh", asked)])
    hashes = [answer["hashes"] for answer in (*copies, *fresh)]
    assert hashes[0] == hashes[1] == hashes[2]
    # As in fresh interpreters, what nobody has seeded differs.
    assert len({answer["draw"] for answer in (*copies, *fresh)}) == 3
    assert different["hashes"] != hashes[0], "the hashes can tell trainings apart"
    assert RunDirectory.open(next((tmp_path / "first-copy" / "runs" / "short").glob("2*"))).read_record() is not None


@pytest.mark.proof
def test_overhead_of_a_task_and_memory_of_the_controller(
    tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num = proof_size(200, 20)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    executor = LocalExecutor(LocalOptions(preload=LIBRARIES))
    tracemalloc.start()
    held_bytes = []
    for number in range(num):
        executor.submit(toy_task(tmp_path, "square", f"task-{number}", number=number))
        assert executor.ended(HANG_S) == [f"task-{number}"]
        gc.collect()
        held_bytes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    executor.close()
    # The imports of the server, all copies, and the server itself: the tasks themselves do nothing.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    growth = max(held_bytes[num // 2 :]) - held_bytes[num // 4]
    report_figure(
        f"{processor_s / num:.3f} s of processor time for each of {num} tasks beyond their own work, imports included; "
        f"the controller holds {growth / 1024:.1f} KiB more after the last task than after a quarter of them"
    )
    assert processor_s / num <= MOST_OVERHEAD_S
    assert growth <= MOST_GROWTH_BYTES
