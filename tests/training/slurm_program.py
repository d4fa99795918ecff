"""Runs on a SLURM cluster: `python -m tests.training.slurm_program EXPERIMENT RUNS`.

Trains on two nodes, kills the task of the second one, and resumes. Prints how both ended, as JSON.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from foretune.record.events import read_events
from tests.waiting import HANG_S, waited_until

_TWO_NODES = ("srun", "--nodes", "2", "--ntasks", "2", "--kill-on-bad-exit=1", sys.executable, "-m", "foretune")


def begun(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([*_TWO_NODES, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    shown, _ = process.communicate(timeout=HANG_S)
    return {"code": process.returncode, "shown": shown}


def wait_for_step(runs: Path, step: int) -> None:
    waited_until(
        lambda: any(
            event["kind"] == "step" and event["step"] >= step
            for log in runs.rglob("events.jsonl")
            for event in read_events(log)
        )
    )


def task(rank: int) -> psutil.Process:
    """The process of a rank. Tasks are children of SLURM's daemons, not of this process."""
    for process in psutil.process_iter():
        if process.cmdline()[1:3] == ["-m", "foretune"] and process.environ().get("SLURM_PROCID") == str(rank):
            return process
    raise AssertionError(f"no task has rank {rank}")


def main() -> None:
    experiment, runs = sys.argv[1:]
    first = begun("train", experiment, "--runs", runs)
    wait_for_step(Path(runs), 8)
    task(1).kill()
    lost = ended(first)
    (run,) = Path(runs, "short").glob("2*")
    print(json.dumps([lost, ended(begun("resume", str(run)))]))


if __name__ == "__main__":
    main()
