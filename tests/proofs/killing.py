"""Runs whose process is killed again and again at random moments until they are done."""

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import yaml

from foretune.record.run_directory import RunDirectory
from foretune.run.checkpoints import DamagedCheckpoint, verify
from tests.proofs.ends import hashes_of
from tests.proofs.fork_server import ForkServer

# A kill strikes at any moment from the start, or soon after a new checkpoint, so that runs get on, or while one is
# being saved, which chance alone would rarely meet.
_MOMENTS = ("any", "after a checkpoint", "inside a save")
_START_UP_S = 1.5
_AFTER_CHECKPOINT_S = 0.3
_IN_SAVE_S = 0.004
_LIMIT_S = 120.0


class Killable(Protocol):
    """A process, however it was started."""

    def kill(self) -> None: ...

    def poll(self) -> int | None: ...


Launch = Callable[[list[str]], Killable]
"""Starts `foretune` with these arguments."""


@dataclass
class Kills:
    """What was seen of one run, or of several."""

    num: int = 0
    num_in_save: int = 0
    """Struck while a checkpoint was written or removed: its unfinished folder lay there."""
    num_before_run: int = 0
    """Struck before there was anything to resume."""
    torn: list[str] = field(default_factory=list)
    num_runs: int = 0
    different: list[str] = field(default_factory=list)
    """What was not as in the uninterrupted run, when the run was done."""

    def __add__(self, other: "Kills") -> "Kills":
        return Kills(**{name: value + getattr(other, name) for name, value in asdict(self).items()})


def forked(server: ForkServer, function: str = "command_line") -> Launch:
    return lambda arguments: server.start(f"tests.proofs.children:{function}", arguments=arguments)


def started_afresh(server: ForkServer, log: Path) -> Launch:
    """The real command line: a new process with all its imports."""

    def launch(arguments: list[str]) -> Killable:
        with log.open("a") as output:
            command = [sys.executable, "-m", "foretune.cli.main", *arguments]
            return subprocess.Popen(command, env=server.environment, stdout=output, stderr=output)

    return launch


def killed_until_done(
    launch: Launch,
    experiment: dict[str, Any],
    folder: Path,
    whole: dict[str, dict[str, str]],
    rng: random.Random,
    most: int,
) -> tuple[RunDirectory, Kills]:
    """Starts or resumes a run, kills it, looks at what is on the disk; after `most` kills it is left alone.

    `whole` holds the hashes of every checkpoint of the uninterrupted run, by name.
    """
    folder.mkdir(parents=True)
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment))
    runs = folder / "runs"
    kills = Kills(num_runs=1)
    while True:
        run = _run_in(runs)
        left = _unfinished(runs)
        process = launch(["resume", str(run.path)] if run else ["train", str(file), "--runs", str(runs)])
        if kills.num < most:
            code = strike(process, lambda: _newest(runs), rng, saving=partial(_is_saving, runs, left))
        else:
            code = wait(process)
        run = _run_in(runs)
        assert code <= 0, f"foretune ended with {code}; its processes write to log.txt in pytest's temporary folders"
        kills.num += code < 0
        kills.num_before_run += run is None
        if run is None:
            continue
        kills.num_in_save += _is_saving(runs, left)
        kills.torn += torn_files(run, whole)
        # A kill may come when the record is written and the process is about to leave.
        record = run.read_record()
        if record is not None and record.outcome.status == "finished":
            return run, kills
        assert code < 0, "it left before it was done"


def strike(
    process: Killable, newest: Callable[[], object], rng: random.Random, saving: Callable[[], bool] | None = None
) -> int:
    """Kills at a random moment; returns the exit code, which is not negative if the process was done before.

    `newest` says which checkpoint is the newest now, `saving` whether one is unfinished; without it no kill aims there.
    """
    moment = rng.choice(_MOMENTS if saving else _MOMENTS[:2])
    if moment == "any":
        time.sleep(rng.uniform(0, _START_UP_S))
    elif saving and moment == "inside a save":
        _wait_until(saving, process)
        time.sleep(rng.uniform(0, _IN_SAVE_S))
    else:
        before = newest()
        _wait_until(lambda: newest() != before, process)
        time.sleep(rng.uniform(0, _AFTER_CHECKPOINT_S))
    process.kill()
    return wait(process)


def _wait_until(reached: Callable[[], bool], process: Killable) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while not reached() and process.poll() is None:
        assert time.monotonic() < end_s, "it makes no checkpoint"
        time.sleep(0.001)


def wait(process: Killable) -> int:
    end_s = time.monotonic() + _LIMIT_S
    while (code := process.poll()) is None:
        assert time.monotonic() < end_s, "it does not end"
        time.sleep(0.002)
    return code


def torn_files(run: RunDirectory, whole: dict[str, dict[str, str]]) -> Iterator[str]:
    """Files under their final names that are not what an undisturbed run would have written."""
    for path in sorted(run.checkpoints.glob("step-*")):
        try:
            verify(path)
        except DamagedCheckpoint as fault:
            yield f"{path.name}: {fault}"
        else:
            if hashes_of(path) != whole[path.name]:
                yield f"{path.name}: not as in the uninterrupted run"
    for name in ("environment.json", "record.json"):
        if (run.path / name).exists() and not _is_json((run.path / name).read_text()):
            yield name
    if run.events.exists():
        # The last line may be half; the next process drops it.
        yield from (f"events: {line!r}" for line in run.events.read_text().split("\n")[:-1] if not _is_json(line))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _run_in(runs: Path) -> RunDirectory | None:
    """The newest that can be resumed; a kill may have come before its experiment was written."""
    found = [path for path in runs.glob("*/*/experiment.yaml") if not path.parent.is_symlink()]
    return RunDirectory.open(max(found, key=lambda path: path.stat().st_mtime).parent) if found else None


def _newest(runs: Path) -> str:
    return max((path.name for path in runs.glob("*/*/checkpoints/step-*")), default="")


def _is_saving(runs: Path, left: set[tuple[str, int]]) -> bool:
    """Whether a checkpoint is unfinished besides those that were `left` by an earlier kill."""
    return bool(_unfinished(runs) - left)


def _unfinished(runs: Path) -> set[tuple[str, int]]:
    """Folders of checkpoints that are being written or removed; the inode tells a new one from one a kill left."""
    found = set()
    for path in runs.glob("*/*/checkpoints/.*"):
        # It may be done between the look and the question.
        with contextlib.suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_ino))
    return found
