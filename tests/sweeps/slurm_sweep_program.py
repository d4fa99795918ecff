"""Runs on a SLURM cluster of two nodes: `python -m tests.sweeps.slurm_sweep_program SWEEP.yaml SWEEPS`.

Runs a sweep whose trial takes both nodes. Its job is preempted, then announced to be out of time, and the controller is
killed and started again meanwhile.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

from foretune.executors.slurm import JOB
from foretune.record.events import read_events
from tests.waiting import HANG_S, waited_until

_OPTIONS = ("time=10", "poll_s=1", "grace_s=600", "partition=low")
_FEW_STEPS = 3


def started(sweep: str, sweeps: Path) -> "subprocess.Popen[str]":
    """The command, in a process that can be killed."""
    options = [part for option in _OPTIONS for part in ("--option", option)]
    command = (sys.executable, "-m", "foretune", "sweep", sweep, "--executor", "slurm", "--no-plot")
    return subprocess.Popen(
        [*command, *options, "--sweeps", str(sweeps)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S).stdout.strip()


def trains(trials: Path, attempt: int) -> bool:
    """Whether this attempt of the trial has made some steps."""
    for log in trials.glob("*/2*/events.jsonl"):
        kinds = [event["kind"] for event in read_events(log)]
        if kinds.count("started") == attempt and kinds[::-1].index("started") >= _FEW_STEPS:
            return True
    return False


def job(trials: Path) -> str:
    """The trial's last job."""
    (found,) = [json.loads(path.read_text())["jobs"][-1] for path in trials.glob(f"*/{JOB}")]
    return str(found)


def main() -> None:
    sweep, sweeps = sys.argv[1], Path(sys.argv[2])
    trials = sweeps / Path(sweep).stem / "sweep_000" / "trials"
    first = started(sweep, sweeps)
    waited_until(lambda: trains(trials, 1) or first.poll() is not None)
    assert first.poll() is None, first.communicate()[0]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = started(sweep, sweeps)
    run("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "true")
    waited_until(lambda: trains(trials, 2) or second.poll() is not None)
    assert second.poll() is None, second.communicate()[0]
    before = job(trials)
    # As SLURM announces the end of a job's time.
    run("scancel", "--signal=USR2", before)
    shown, _ = second.communicate(timeout=HANG_S)
    print(json.dumps({"code": second.returncode, "shown": shown, "jobs": [before, job(trials)]}))


if __name__ == "__main__":
    main()
