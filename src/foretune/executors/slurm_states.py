"""What SLURM knows of jobs: `squeue`, and `sacct` for those it has forgotten, where the cluster keeps accounts."""

import getpass
import re
import subprocess
from collections.abc import Iterable

from foretune.core.errors import UserError

_TIMEOUT_S = 120
_FIELDS = "%F|%K|%T"
_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
VANISHED = "VANISHED"
"""SLURM has forgotten the job, and keeps no accounts."""
_DEFAULT_MAX_ARRAY_SIZE = 1001


def has_ended(state: str) -> bool:
    return state in _ENDED or state == VANISHED


def states_of_jobs() -> dict[str, str] | None:
    """The state of each job of this user, elements of arrays as `123_4`. None while SLURM does not answer."""
    text = _output(
        ["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", f"--format={_FIELDS}"]
    )
    if text is None:
        return None
    states = dict[str, str]()
    for line in text.splitlines():
        job, index, state = line.strip().split("|")
        # An element that was requeued may be listed twice; the one that is alive counts.
        name = f"{job}_{index}" if index.isdigit() else job
        if name not in states or has_ended(states[name]):
            states[name] = state
    return states


def accounted_states(jobs: Iterable[str]) -> dict[str, str]:
    """The state of jobs that `squeue` has forgotten; empty where the cluster keeps no accounts."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", "--jobs", ",".join(jobs)]
    states = dict[str, str]()
    for line in (_output(command) or "").splitlines():
        job, _, state = line.partition("|")
        # "CANCELLED by 1000"
        states[job] = state.partition(" ")[0]
    return states


def max_array_size() -> int:
    """How many elements an array of jobs may have."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _output(["scontrol", "show", "config"]) or "", re.MULTILINE)
    return _DEFAULT_MAX_ARRAY_SIZE if match is None else max(1, int(match[1]))


def cancel(job: str) -> None:
    command = ["scancel", job]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
    )
    if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
        raise UserError(f"SLURM did not cancel job {job}: {answer.stderr.strip()}")


def _output(command: list[str]) -> str | None:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
