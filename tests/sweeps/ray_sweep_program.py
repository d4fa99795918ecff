"""A sweep on a Ray cluster of two nodes on this machine, of which one is killed.

`python -m tests.sweeps.ray_sweep_program SWEEP.yaml SWEEPS`
Trials with faults are those of `tests.proofs.sweep_trial_worker`. Prints which trials ran on the node that was killed,
as JSON. It is started in namespaces of its own, where nothing but loopback exists.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from foretune.config.sweep_files import check_sweep, load_sweep
from foretune.executors.executor import open_executor
from foretune.executors.state import read_state
from foretune.sweeps.controller import SweepController, TrialWatcher
from foretune.sweeps.sweep_folder import SweepFolder, sweep_folder
from tests.executors.ray_program import PATIENT, PORT, kill_node, started
from tests.proofs.sweep_trial_worker import PLANTED, WORKER, HangsEndSoon


class NodeKiller(TrialWatcher):
    """Kills a node as soon as it performs a trial without a fault, and some trials have ended."""

    def __init__(self, node: "subprocess.Popen[bytes]", folder: SweepFolder) -> None:
        self._node, self._folder, self.lost = node, folder, list[str]()

    def looked(self, progress: Any) -> None:
        if self.lost or progress.num_ended == 0:
            return
        if self._unfinished({process.pid for process in psutil.Process(self._node.pid).children(recursive=True)}):
            self.lost = self._unfinished(set(kill_node(self._node)))

    def _unfinished(self, processes: set[int]) -> list[str]:
        """Trials that these processes perform, or performed when they ended."""
        states = {path.name: read_state(path) for path in self._folder.trial_folders()}
        return [
            name
            for name, state in states.items()
            if state.kind != "ended" and state.attempt is not None and state.attempt.pid in processes
        ]


def main() -> None:
    path, sweeps, start_s = Path(sys.argv[1]), Path(sys.argv[2]), time.monotonic()
    logs = sweeps.parent
    token = logs / "token"
    token.write_text(secrets.token_hex(32))
    os.environ |= PATIENT | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }
    os.environ[PLANTED] = "yes"
    started(logs, "--head", f"--port={PORT}", "--include-dashboard=false", num_cpus=1)
    second = started(logs, f"--address=127.0.0.1:{PORT}", num_cpus=1)
    executor = HangsEndSoon(open_executor("ray", {"address": f"127.0.0.1:{PORT}", "grace_s": 1.0}))
    print(f"the cluster is up after {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)

    asked = check_sweep(load_sweep(path), path, name="proof")
    folder = sweep_folder(sweeps, asked)
    killer = NodeKiller(second, folder)
    SweepController(
        asked=asked, folder=folder, executor=executor, environment="here", watcher=killer, worker=WORKER
    ).run()
    executor.close()
    print(f"all is over after {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps({"lost": killer.lost}))


if __name__ == "__main__":
    main()
