"""Runs inside of a SLURM cluster: `python -m tests.executors.slurm_program FOLDER [CHAPTER ...]`.

Lets tasks be preempted, requeued, cancelled, and lose their node and their controller. Prints what became of them, as
JSON.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from foretune.executors.executor import Executor, open_executor
from foretune.executors.slurm import JOB
from foretune.executors.state import read_state
from foretune.executors.task import Limits, Resources, Task
from foretune.executors.task_files import read_answer, read_outcome
from tests.executors.cluster_tasks import times_performed, toy_task
from tests.waiting import HANG_S, waited_until

_OPTIONS = {"time": "10", "poll_s": 1, "grace_s": 3}


class Story:
    """Tasks in one folder, and what is expected of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, tuple[str, int]] = {}
        """By the task's name: its outcome, and how often it is begun."""

    def task(self, do: str, name: str, kind: str, times: int = 1, **more: object) -> Task:
        self.expected[name] = (kind, times)
        more.setdefault("saved", str(self.folder / f"{name}.saved"))
        more.setdefault("go", str(self.folder / "go"))
        return toy_task(self.folder, do, name, max_attempts=5, **more)

    def found(self) -> dict[str, tuple[str | None, int]]:
        times = times_performed(self.folder)
        outcomes = {name: read_outcome(self.folder / "tasks" / name) for name in self.expected}
        return {
            name: (None if outcome is None else outcome.kind, times.get(name, 0)) for name, outcome in outcomes.items()
        }


def opened(**options: object) -> Executor:
    return open_executor("slurm", {**_OPTIONS, **options})


def finish(executor: Executor, *tasks: Task) -> None:
    """Waits until all of them have ended."""
    names = {task.name for task in tasks}
    while names:
        ended = executor.ended(HANG_S)
        assert ended, f"{names} do not end"
        names -= set(ended)


def began(task: Task) -> None:
    waited_until(Path(task.request["began"]).exists)


def job_of(task: Task) -> str:
    job: str = json.loads((task.folder / JOB).read_text())["jobs"][-1]
    return job


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S).stdout.strip()


def ordinary(story: Story) -> None:
    """An array of ten, of which four fail in their own ways, and a single one of two nodes."""
    executor = opened()
    tasks = [story.task("square", f"square-{number}", "done", number=number) for number in range(6)]
    tasks.append(story.task("segfault", "segfault", "crashed"))
    tasks.append(story.task("import_missing", "import", "crashed"))
    limits = Limits(seconds=2.0)
    tasks.append(story.task("hang", "hang", "timed out", limits=limits))
    tasks.append(story.task("host_memory", "memory", "out of host memory", limits=Limits(host_bytes=2**30)))
    for task in tasks:
        executor.submit(task)
    finish(executor, *tasks)


def preempted(story: Story) -> None:
    executor, task = opened(partition="low"), story.task("until_interrupted", "preempted", "done", 2)
    executor.submit(task)
    executor.ended(0.0)
    began(task)
    urgent = ("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    run(*urgent)
    finish(executor, task)


def announced(story: Story) -> None:
    """SLURM announces the end of a job's time by a signal; the task saves, and the job is requeued."""
    executor, task = opened(), story.task("until_interrupted", "requeued", "done", 2)
    executor.submit(task)
    executor.ended(0.0)
    began(task)
    job = job_of(task)
    # As SLURM does it `signal_s` before the end, without the minutes until then.
    run("scancel", "--signal=USR2", job)
    finish(executor, task)
    assert job_of(task) == job, "it was requeued, not submitted again"


def hostile_folder(story: Story) -> None:
    """A folder that is called like a command is a folder."""
    folder = story.folder / 'it\'s "a" folder; touch owned; $(touch owned) `touch owned` & #'
    folder.mkdir()
    executor, task = opened(), toy_task(folder, "square", "quoted", number=5)
    executor.submit(task)
    finish(executor, task)
    assert read_answer(task.folder) == {"square": 25}
    assert not list(story.folder.rglob("owned*")) + list(Path.cwd().glob("owned*"))


def out_of_time(story: Story) -> None:
    """A job reaches its limit: SLURM's clock is coarse, which takes minutes. Only where it is requested."""
    executor, task = opened(time="2", signal_s=20), story.task("until_interrupted", "out-of-time", "done", 2)
    executor.submit(task)
    finish(executor, task)


def two_nodes(story: Story) -> None:
    """Each node runs the worker; where that of the second one fails, the outcome says why."""
    executor, resources = opened(), Resources(num_nodes=2)
    together = story.task("ranks", "together", "done", 2, resources=resources)
    failing = story.task("ranks", "failing", "crashed", 2, resources=resources, failing="1")
    for task in (together, failing):
        executor.submit(task)
    finish(executor, together, failing)
    assert read_answer(together.folder) == {"rank": "0", "num": "2"}
    outcome = read_outcome(failing.folder)
    assert outcome is not None
    assert outcome.reason == "Process 1: ValueError: this rank fails", outcome
    # On a busy node the second one may fail before the first one has begun; neither is begun again.
    times = times_performed(story.folder)["failing"]
    assert times <= resources.num_nodes, times
    story.expected["failing"] = ("crashed", times)


def lost_node(story: Story) -> None:
    executor, task = opened(), story.task("wait_for", "node", "done", 2, go=str(story.folder / "go-node"))
    executor.submit(task)
    executor.ended(0.0)
    began(task)
    node = run("squeue", "--noheader", "--jobs", job_of(task), "--format=%N")
    run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    # Its process may not end by itself before the node is cleared.
    waited_until(lambda: read_state(task.folder).kind == "waiting" or read_state(task.folder).num_attempts > 1)
    (story.folder / "go-node").touch()
    finish(executor, task)
    # Unless its daemon has registered it again meanwhile.
    subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], capture_output=True, check=False)


def cancelled(story: Story) -> None:
    executor = opened()
    by_hand, stopped = story.task("hang", "cancelled", "killed"), story.task("hang", "stopped", "killed")
    for task in (by_hand, stopped):
        executor.submit(task)
    executor.ended(0.0)
    for task in (by_hand, stopped):
        began(task)
    run("scancel", job_of(by_hand))
    executor.stop("stopped")
    finish(executor, by_hand, stopped)


def controller_killed(story: Story) -> None:
    """The jobs go on, and another controller finds them."""
    tasks = [story.task("wait_for", f"left-{number}", "done") for number in range(3)]
    pid = os.fork()
    if pid == 0:
        executor = opened()
        for task in tasks:
            executor.submit(task)
        executor.ended(None)
    began(tasks[0])
    # Written when the array was accepted.
    waited_until(lambda: all((task.folder / JOB).exists() for task in tasks))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    executor = opened()
    for task in tasks:
        executor.submit(task)
    (story.folder / "go").touch()
    finish(executor, *tasks)


def main() -> None:
    story, start_s = Story(Path(sys.argv[1])), time.monotonic()
    chapters = (ordinary, hostile_folder, two_nodes, preempted, announced, lost_node, cancelled, controller_killed)
    for chapter in [globals()[name] for name in sys.argv[2:]] or chapters:
        chapter(story)
        print(f"{chapter.__name__} is over after {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps({"expected": story.expected, "found": story.found()}))


if __name__ == "__main__":
    main()
