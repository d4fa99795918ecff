"""A sweep's controller that proofs start and kill: `python -m tests.proofs.sweep_program SWEEP.yaml FOLDER ANSWER`.

Writes what the controller took: memory after each trial, processor time with all of its processes.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from foretune.config.sweep_files import check_sweep, load_sweep
from foretune.executors.local import LocalExecutor, LocalOptions
from foretune.sweeps.controller import SweepController, TrialWatcher
from foretune.sweeps.sweep_folder import sweep_folder
from tests.proofs.sweep_trial_worker import WORKER, HangsEndSoon

ROOT = Path(__file__).parents[2]


class Memory(TrialWatcher):
    """Resident memory of the controller after each trial."""

    def __init__(self) -> None:
        self.resident_bytes: list[int] = []

    def ended(self, result: Any, progress: Any) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident_bytes.append(pages * resource.getpagesize())


def main() -> None:
    path, sweeps, answer = (Path(argument) for argument in sys.argv[1:])
    # Started as a copy of another process (`tests/forked_python.py`), it has no path that trials can import tests from.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    asked = check_sweep(load_sweep(path), path, name="proof")
    watcher = Memory()
    executor = HangsEndSoon(LocalExecutor(LocalOptions(preload=("foretune.sweeps.preloaded", WORKER), grace_s=1.0)))
    folder = sweep_folder(sweeps, asked)
    SweepController(
        asked=asked, folder=folder, executor=executor, environment="here", watcher=watcher, worker=WORKER
    ).run()
    executor.close()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total_s = sum(one.ru_utime + one.ru_stime for one in used)
    answer.write_text(json.dumps({"resident_bytes": watcher.resident_bytes, "total_s": total_s}))


if __name__ == "__main__":
    main()
