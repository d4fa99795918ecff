"""Trials of sweeps in proofs: real trainings of a tiny model, some of which have a fault that is planted here."""

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from foretune.core.observer import Observer
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
PLANTED = "FORETUNE_TEST_FAULTS"
"""Set where learning rates of an odd number stand for faults."""


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Performs the trial; returns the processor time of its own work, too."""
    number = round(float(request["experiment"]["optimizer"]["lr"]) * 1e6)
    if PLANTED in os.environ and number % 2:
        _fail(list(FAULTS)[number // 2 % len(FAULTS)])
    begin_s = time.process_time()
    answer = trial_worker.perform(request, observer)
    return {**answer, "own_s": time.process_time() - begin_s}


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
