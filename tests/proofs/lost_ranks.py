"""Runs of two processes that Foretune starts itself, on any device, which are killed, stopped or hang.

As a program, `python -m tests.proofs.lost_ranks ARGS`, it is the command line, with processes that hang or stand still
where the environment asks for it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from foretune.record.run_directory import RunDirectory
from tests.proofs.killing import newest_run
from tests.training.short_runs import events_of, short_mapping
from tests.waiting import waited_until

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

HANGS = "HANGS_AT_STEP"
"""A number of steps, a colon, and the file that says since when the process hangs."""
HELD = "HELD_AT_PLACE"
"""A place of `stopped_places`, a colon, and the folder for the signs of a process that stands still there."""
_ROOT = Path(__file__).parents[2]


class TwoProcesses:
    """A training command and the processes below it, on the CPU unless the section `parallel` has another device."""

    def __init__(
        self,
        forked: "ForkedPython",
        model: Path,
        work: Path,
        hangs_at: int | None = None,
        held_at: str | None = None,
        **sections: Any,
    ):
        """`hangs_at` is for every start of the run, `held_at` for the first."""
        work.mkdir(exist_ok=True)
        self._forked, self.runs = forked, work / "runs"
        path = work / "two.yaml"
        sections["parallel"] = {"devices": 2, "device": "cpu", **sections.get("parallel", {})}
        path.write_text(yaml.safe_dump(short_mapping(model, work, **sections)))
        self.sign = work / "hangs-since"
        self._hangs = {} if hangs_at is None else {HANGS: f"{hangs_at}:{self.sign}"}
        self._train = ("train", str(path), "--runs", str(self.runs))
        self.signs = work / "signs"
        self.process = self._started(*self._train, held_at=held_at)

    def _started(self, *arguments: str, held_at: str | None) -> "subprocess.Popen[str]":
        shutil.rmtree(self.signs, ignore_errors=True)
        self.signs.mkdir()
        held = {} if held_at is None else {HELD: f"{held_at}:{self.signs}"}
        return subprocess.Popen(
            [self._forked.python, "-m", "tests.proofs.lost_ranks", *arguments],
            cwd=_ROOT,
            env={**os.environ, **self._forked.variables, "PYTHONPATH": str(_ROOT / "src"), **self._hangs, **held},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def go_on(self, held_at: str | None = None) -> None:
        """Resumes the run, or starts it from the beginning if there is nothing to resume."""
        run = newest_run(self.runs)
        arguments = self._train if run is None else ("resume", str(run.path))
        self.process = self._started(*arguments, held_at=held_at)

    @property
    def is_held(self) -> bool:
        """Whether a process has come to the place at which it was to stand still."""
        return (self.signs / HELD).exists()

    def kill_all(self) -> None:
        """At once, as a machine that loses its power."""
        below = self._below(lambda _: True)
        self.process.kill()
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.communicate()
        waited_until(lambda: not self._below(lambda _: True))

    @property
    def run(self) -> RunDirectory:
        (path,) = (self.runs / "short").glob("2*")
        return RunDirectory(path)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return events_of(self.run, *kinds) if any(self.runs.rglob("events.jsonl")) else []

    def wait_for_save_of_start(self, number: int) -> int:
        """Returns when the run was started so often and has saved since: the step of its newest checkpoint."""

        def saved() -> list[int]:
            has_ended = self.process.poll() is not None
            events = self.events("started", "saved")
            places = [place for place, event in enumerate(events) if event["kind"] == "started"]
            steps = [int(event["step"]) for event in events[places[-1] + 1 :]] if len(places) == number else []
            assert steps or not has_ended, self.process.communicate()[0]
            return steps

        waited_until(lambda: bool(saved()))
        return saved()[-1]

    def newest_checkpoint(self) -> str:
        """Its name; none if nothing was saved yet."""
        return max((path.name for path in self.runs.glob("*/*/checkpoints/step-*")), default="")

    def processor_s(self) -> float:
        """What all processes of the run have used, those that have ended included.

        Of a copying process nothing else was copied meanwhile, so that differences are this run's.
        """
        ended = psutil.Process(self._forked.server_pid).cpu_times()
        used_s: float = ended.children_user + ended.children_system
        for one in self._below(lambda _: True):
            with suppress(psutil.NoSuchProcess):
                used_s += sum(one.cpu_times()[:4])
        return used_s

    def wait_until_all_ended(self) -> None:
        """Returns when no process is left behind that the agent has started."""
        waited_until(lambda: not self._below(lambda one: "RANK" in one.environ()))

    def worker(self, rank: int) -> psutil.Process:
        """The process of a rank; with it ends the copy that it asked for."""
        (found,) = self._below(lambda one: one.environ().get("RANK") == str(rank))
        return found

    def _below(self, is_wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
        found = []
        for one in psutil.Process(self._forked.server_pid).children(recursive=True):
            try:
                if one.status() != psutil.STATUS_ZOMBIE and is_wanted(one):
                    found.append(one)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it ended while it was looked at
        return found


def main() -> None:
    from foretune.api import train
    from foretune.cli.main import main as command_line

    if HANGS in os.environ:
        train._RANK_WORKER = "tests.proofs.hanging_worker"
    if HELD in os.environ:
        train._RANK_WORKER = "tests.proofs.held_worker"
    sys.argv = ["foretune", *sys.argv[1:]]
    command_line()


if __name__ == "__main__":
    main()
