"""Trials of sweeps in proofs: real trainings of a tiny model, some of which have a fault that is planted here."""

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretune.core.observer import Observer
from foretune.executors.executor import Executor
from foretune.executors.task import Task
from foretune.sweeps import trial_worker
from tests.waiting import HANG_S

FAULTS = {
    "host memory": "out of host memory",
    "segfault": "crashed",
    "kill": "killed",
    "hang": "timed out",
    "import": "crashed",
}
"""What is planted, and the outcome that it is."""
WORKER = "tests.proofs.sweep_trial_worker"
HANGING_S = 2.0
PLANTED = "FORETUNE_TEST_FAULTS"
"""Set where learning rates of an odd number stand for faults."""


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Performs the trial; returns the processor time of its own work, too."""
    fault = fault_of(request)
    if fault is not None:
        _fail(fault)
    begin_s = time.process_time()
    answer = trial_worker.perform(request, observer)
    return {**answer, "own_s": time.process_time() - begin_s}


def fault_of(request: Mapping[str, Any]) -> str | None:
    """What is planted in a trial; None in every second one, and where nothing is planted."""
    return planted(float(request["experiment"]["optimizer"]["lr"])) if PLANTED in os.environ else None


def planted(learning_rate: float) -> str | None:
    """Trials are numbered by their learning rates."""
    number = round(learning_rate * 1e6)
    return list(FAULTS)[number // 2 % len(FAULTS)] if number % 2 else None


class HangsEndSoon:
    """An executor in which only trials that hang have a limit of time: a busy machine may delay the others for long."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self.name, self.notes = executor, executor.name, executor.notes
        self.num_slots = executor.num_slots

    def submit(self, task: Task) -> None:
        seconds = HANGING_S if fault_of(task.request) == "hang" else None
        self._executor.submit(replace(task, limits=replace(task.limits, seconds=seconds)))

    def ended(self, timeout_s: float | None) -> list[str]:
        return self._executor.ended(timeout_s)

    def stop(self, name: str) -> None:
        self._executor.stop(name)

    def close(self) -> None:
        self._executor.close()


def _fail(fault: str) -> None:
    if fault == "host memory":
        blocks = []
        while True:
            blocks.append(bytearray(2**26))
    elif fault == "segfault":
        ctypes.string_at(0)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hang":
        time.sleep(HANG_S)
    else:
        import foretune_has_no_such_module  # type: ignore[import-not-found]  # noqa: F401


def experiment(model: Path, cache: Path) -> dict[str, Any]:
    """Two steps of a tiny model."""
    return {
        "model": str(model),
        "method": {"kind": "full"},
        "data": {"kind": "shapes", "resolution": 32, "num_samples": 8, "cache_dir": str(cache)},
        "train": {"batch_size": 1, "precision": "fp32"},
        "parallel": {"device": "cpu", "threads": 1},
    }
