"""Runs whose process is killed again and again at random moments until they are done."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import yaml

from foretune.record.run_directory import RunDirectory
from foretune.training.checkpoint_files import DamagedCheckpoint, verify
from tests.proofs.ends import hashes_of
from tests.proofs.fork_server import ForkServer
from tests.waiting import HANG_S

Moment = Literal["inside a save", "after a checkpoint", "any"]
MOMENTS: tuple[Moment, ...] = ("inside a save", "after a checkpoint", "any")
"""A kill strikes where a save is held at one of its file operations, which chance alone would rarely meet; or soon
after a new checkpoint, so that runs get on; or at any moment from the start. Each run goes through them in turn."""
_START_UP_S = 1.5
_AFTER_CHECKPOINT_S = 0.3


class Killable(Protocol):
    """A process, however it was started."""

    def kill(self) -> None: ...

    def poll(self) -> int | None: ...


class Launch(Protocol):
    """Starts `foretune` with these arguments.

    With `hold_at` it stands still before the file operation of that number of its saves, and makes the file `sign`.
    """

    def __call__(self, arguments: list[str], hold_at: int | None = None, sign: Path | None = None) -> Killable: ...


@dataclass
class Kills:
    """What was seen of one run, or of several."""

    num: int = 0
    num_in_save: int = 0
    """Struck while a save stood still at one of its file operations."""
    num_before_run: int = 0
    """Struck before there was anything to resume."""
    torn: list[str] = field(default_factory=list)
    num_runs: int = 0
    different: list[str] = field(default_factory=list)
    """What was not as in the uninterrupted run, when the run was done."""

    def __add__(self, other: "Kills") -> "Kills":
        return Kills(**{name: value + getattr(other, name) for name, value in asdict(self).items()})


def forked(server: ForkServer, function: str = "command_line") -> Launch:
    def launch(arguments: list[str], hold_at: int | None = None, sign: Path | None = None) -> Killable:
        return server.start(
            f"tests.proofs.children:{function}", arguments=arguments, hold_at=hold_at, sign=str(sign or "")
        )

    return launch


def started_afresh(server: ForkServer, log: Path) -> Launch:
    """The real command line: a new process with all its imports, which nothing holds."""

    def launch(arguments: list[str], hold_at: int | None = None, sign: Path | None = None) -> Killable:
        assert hold_at is None, "choose other moments"
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
    moments: Sequence[Moment] = MOMENTS,
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
        run = newest_run(runs)
        arguments = ["resume", str(run.path)] if run else ["train", str(file), "--runs", str(runs)]
        was_held = False
        if kills.num < most:
            moment = moments[kills.num % len(moments)]
            code, was_held = struck(
                launch,
                arguments,
                moment,
                lambda: _newest(runs),
                rng,
                num_operations=_num_operations(whole),
                work=folder,
            )
        else:
            code = wait(launch(arguments))
        run = newest_run(runs)
        assert code <= 0, f"foretune ended with {code}; its processes write to log.txt in pytest's temporary folders"
        kills.num += code < 0
        kills.num_before_run += run is None
        if run is None:
            continue
        kills.num_in_save += was_held
        kills.torn += torn_files(run, whole)
        # A kill may come when the record is written and the process is about to leave.
        record = run.read_record()
        if record is not None and record.outcome.status == "finished":
            return run, kills
        assert code < 0, "it left before it was done"


def struck(
    launch: Launch,
    arguments: list[str],
    moment: Moment,
    newest: Callable[[], object],
    rng: random.Random,
    *,
    num_operations: int,
    work: Path,
) -> tuple[int, bool]:
    """Starts a process and kills it; its exit code, which is not negative if it was done before, and whether it was
    held in a save.

    `newest` says which checkpoint is the newest now; a save makes at least `num_operations` file operations.
    """
    if moment == "inside a save":
        sign = work / "held"
        sign.unlink(missing_ok=True)
        process = launch(arguments, rng.randint(1, num_operations), sign)
        wait_until(sign.exists, process)
        process.kill()
        return wait(process), sign.exists()
    process = launch(arguments)
    if moment == "any":
        time.sleep(rng.uniform(0, _START_UP_S))
    else:
        before = newest()
        wait_until(lambda: newest() != before, process)
        time.sleep(rng.uniform(0, _AFTER_CHECKPOINT_S))
    process.kill()
    return wait(process), False


def _num_operations(whole: dict[str, dict[str, str]]) -> int:
    """Of a first save at least: a folder; each file but the manifest is written and read, and the manifest written;
    the folder is flushed, renamed, and so is the one above.
    """
    num_files = len(next(iter(whole.values())))
    return 1 + 2 * (num_files - 1) + 1 + 3


def wait_until(reached: Callable[[], bool], process: Killable, otherwise: str = "it makes no checkpoint") -> None:
    """Until it is so, or the process has ended."""
    end_s = time.monotonic() + HANG_S
    while not reached() and process.poll() is None:
        assert time.monotonic() < end_s, otherwise
        time.sleep(0.001)


def wait(process: Killable) -> int:
    end_s = time.monotonic() + HANG_S
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


def newest_run(runs: Path) -> RunDirectory | None:
    """The newest that can be resumed; a kill may have come before its experiment was written."""
    found = [path for path in runs.glob("*/*/experiment.yaml") if not path.parent.is_symlink()]
    return RunDirectory.open(max(found, key=lambda path: path.stat().st_mtime).parent) if found else None


def _newest(runs: Path) -> str:
    return max((path.name for path in runs.glob("*/*/checkpoints/step-*")), default="")
