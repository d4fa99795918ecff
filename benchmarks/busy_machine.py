"""What other processes cost: the quickstart, the demo and a bench, on an idle machine and beside a busy loop per core.

Each round runs every workload with every wait policy idle and busy, in turns, so that a machine that drifts does so for
all. Loops and workloads have the same priority: two loops on two cores leave half of the processor time, so twice as
slow is the best that can be had there. Run it on an otherwise idle machine:

    python benchmarks/busy_machine.py                                  # the whole table, about an hour
    python benchmarks/busy_machine.py --rounds 1 --only quickstart     # a first look
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from foretune.core.thread_waiting import WAITING_VARIABLES
from foretune.stats.student import student_quantile

FORETUNE = (sys.executable, "-m", "foretune")
QUICKSTART = (
    ("init", "quick.yaml", "--model", "foretune-shapes", "--method", "lora"),
    ("train", "quick.yaml", "data.num_samples=256"),
    ("evaluate", "runs/quick/latest", "--metrics", "style,captions,loss"),
    ("export", "runs/quick/latest", "--output", "my-adapter"),
    (
        *("sample", "--base", "foretune-shapes", "--adapter", "my-adapter"),
        *("--prompt", "a large red circle on blue", "--output", "side-by-side.png"),
    ),
    ("report", "runs", "-o", "report.html"),
)
WORKLOADS: Mapping[str, Sequence[Sequence[str]]] = {
    "quickstart": QUICKSTART,
    "demo": (("demo", "--no-open"),),
    "bench": (QUICKSTART[0], ("bench", "quick.yaml", "data.num_samples=256", "--steps", "50", "--repeat", "3")),
}
POLICIES: Mapping[str, Mapping[str, str]] = {
    "as shipped": {},
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE"},
}
"""Environment variables of each: without one the program decides how threads wait; ACTIVE is how it was before."""
_BUSY_LOOP = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Took:
    """One workload, once."""

    workload: str
    policy: str
    is_busy: bool
    wall_s: float
    folder: str


@contextmanager
def busy_loops(cores: Sequence[int]) -> Iterator[None]:
    """A process on each of these cores that computes until the block ends, at the priority of this one."""
    command = [sys.executable, "-c", _BUSY_LOOP]
    loops = [subprocess.Popen([*command, str(core)], stdout=subprocess.PIPE) for core in cores]
    try:
        for loop in loops:
            assert loop.stdout is not None, "asked for a pipe"
            loop.stdout.readline()
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


@contextmanager
def beside(is_busy: bool) -> Iterator[None]:
    """A busy loop on every core of this process, or nothing."""
    with busy_loops(sorted(os.sched_getaffinity(0)) if is_busy else ()):
        yield


def environment(**variables: str) -> dict[str, str]:
    """This environment without what it says about threads, as a user has it, and these variables."""
    said = {*WAITING_VARIABLES, "OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    return {**{name: value for name, value in os.environ.items() if name not in said}, **variables}


def measure(workload: str, policy: str, folder: Path, *, is_busy: bool) -> Took:
    """Runs the commands of a workload in a new folder; raises where one of them fails."""
    folder.mkdir(parents=True)
    with beside(is_busy):
        begin_s = time.monotonic()
        for command in WORKLOADS[workload]:
            subprocess.run(
                [*FORETUNE, *command],
                cwd=folder,
                env=environment(**POLICIES[policy]),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        wall_s = time.monotonic() - begin_s
    return Took(workload, policy, is_busy, wall_s, str(folder))


def rounds(num: int, workloads: Sequence[str], policies: Sequence[str], folder: Path) -> Iterator[Took]:
    """Idle and busy in turns; every second round backwards, so that none is always first."""
    for number in range(num):
        for workload in workloads:
            for policy in policies:
                for is_busy in (False, True) if number % 2 == 0 else (True, False):
                    name = f"{workload}-{policy.replace(' ', '-')}-{'busy' if is_busy else 'idle'}-{number}"
                    yield measure(workload, policy, folder / name, is_busy=is_busy)


def slowdown(took: Sequence[Took], workload: str, policy: str) -> tuple[float, float | None, float | None]:
    """Busy over idle, round by round: the geometric mean, and its 95 % interval where there are several rounds."""
    sides = [
        [one.wall_s for one in took if (one.workload, one.policy, one.is_busy) == (workload, policy, is_busy)]
        for is_busy in (False, True)
    ]
    logs = [math.log(busy / idle) for idle, busy in zip(*sides, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return math.exp(mean), None, None
    reach = student_quantile((1 + _CONFIDENCE) / 2, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def table(took: Sequence[Took]) -> Iterator[str]:
    """Markdown, for docs/benchmarking.md."""
    yield "| | threads wait | idle, s | beside a busy loop per core, s | times as slow |"
    yield "|---|---|---|---|---|"
    for workload, policy in dict.fromkeys((one.workload, one.policy) for one in took):
        means = [
            statistics.fmean(
                one.wall_s for one in took if (one.workload, one.policy, one.is_busy) == (workload, policy, is_busy)
            )
            for is_busy in (False, True)
        ]
        ratio, low, high = slowdown(took, workload, policy)
        interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
        yield f"| {workload} | {policy} | {means[0]:.0f} | {means[1]:.0f} | {ratio:.2f}{interval} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(WORKLOADS), action="append", help="only this workload; repeatable")
    parser.add_argument("--policy", choices=tuple(POLICIES), action="append", help="only this policy; repeatable")
    parser.add_argument("--json", action="store_true", help="print every time instead of the table")
    parser.add_argument("--folder", type=Path, help="keep what is made here [default: a temporary folder]")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.folder or Path(scratch)).resolve()
        took = []
        for one in rounds(asked.rounds, asked.only or tuple(WORKLOADS), asked.policy or tuple(POLICIES), folder):
            state = "busy" if one.is_busy else "idle"
            sys.stderr.write(f"{one.workload}, {one.policy}, {state}: {one.wall_s:.1f} s\n")
            took.append(one)
    text = json.dumps([asdict(one) for one in took], indent=2) if asked.json else "\n".join(table(took))
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
