"""Checkpoints: written whole or not at all, read back before they count, and never trusted when loaded.

A checkpoint is written under another name, flushed to the disk, read back and compared, and only then renamed into
place: a kill at any moment leaves the older checkpoints as they were. Several processes write it together, or not at
all: the first one renames it when the others have reported that their files are on the disk.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from foretune.core.disk_faults import disk_fault
from foretune.core.errors import UserError
from foretune.record.atomic import sync_directory
from foretune.training.checkpoint_files import (
    Checkpoint,
    DamagedCheckpoint,
    Files,
    Place,
    files_of,
    read,
    write_manifest,
    write_tensors,
)
from foretune.training.ranks import ALONE, Ranks

_NAME = re.compile(r"^step-(\d{9})$")


class NoGoodCheckpoint(UserError):
    """There are checkpoints and none can be trusted: going on would silently start over."""


class OtherProcessFailed(Exception):
    """Another process could not do its part of a save."""


class CheckpointStore:
    """The checkpoints of one run. Where it has several processes, each of them makes the same calls."""

    def __init__(self, directory: Path, keep: int, ranks: Ranks = ALONE) -> None:
        self.directory, self._keep, self.ranks = directory, keep, ranks

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        names = (_NAME.match(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def path(self, step: int) -> Path:
        return self.directory / f"step-{step:09d}"

    def write(self, checkpoint: Checkpoint) -> Path:
        """Commits a checkpoint, then removes those past the number to keep."""
        return self.write_files(checkpoint.step, files_of(checkpoint, self.ranks), checkpoint.scalars)

    def write_files(self, step: int, files: Files, scalars: Mapping[str, Any]) -> Path:
        """The same, of files that are known before they are written."""
        final = self.path(step)
        temporary = self.directory / f".writing-{final.name}"
        is_first = self.ranks.is_first
        try:
            self._in_all(lambda: self._begin(temporary) if is_first else None)
            written = self._in_all(lambda: write_tensors(temporary, files))
            together = {name: described for own in written for name, described in own.items()}
            self._in_all(lambda: write_manifest(temporary, step, scalars, together) if is_first else None)
        except Exception:
            if is_first:
                # On a full disk, what was written so far would take the room that the log and the record need.
                self._clear_leftovers()
            raise
        self._in_all(lambda: self._commit(step, temporary) if is_first else None)
        return final

    def _begin(self, temporary: Path) -> None:
        self._clear_leftovers()
        temporary.mkdir()

    def _commit(self, step: int, temporary: Path) -> None:
        final = self.path(step)
        if os.path.lexists(final):
            # A run goes on from its newest good checkpoint, so one that is in its way was refused when it was read.
            self._set_aside(final)
        temporary.rename(final)
        sync_directory(self.directory)
        # Newer ones were refused too: counting them would push out the good ones.
        for older in [older for older in self.steps() if older <= step][: -self._keep]:
            self._set_aside(self.path(older))
        self._clear_leftovers()

    def _in_all(self, act: Callable[[], Any]) -> list[Any]:
        """Does a part of a save in every process; returns what each gives. Where one fails, all do."""
        if self.ranks.size == 1:
            return [act()]
        failure, own = None, None
        try:
            own = act()
        except Exception as error:  # noqa: BLE001 - raised below, when the others know
            failure = error
        text = None if failure is None else disk_fault(failure) or f"{type(failure).__name__}: {failure}"
        found = self.ranks.from_all({"own": own, "fault": text})
        if failure is not None:
            raise failure
        for rank, one in enumerate(found):
            if one["fault"] is not None:
                raise OtherProcessFailed(f"Process {rank} could not write its part of a checkpoint: {one['fault']}")
        return [one["own"] for one in found]

    def read_newest(
        self,
        components: Iterable[str],
        check: Callable[[Checkpoint], None] | None = None,
        place: Place | None = None,
    ) -> tuple[Checkpoint, list[str]] | None:
        """The newest checkpoint that is whole, and what was wrong with newer ones; None where there is none at all.

        `check` may refuse what a reader cannot judge, such as whether it fits the model, with DamagedCheckpoint.
        `place` makes what the tensors of a sharded checkpoint are read into. A checkpoint counts where every process
        finds its part whole.
        """
        components, steps = tuple(components), self.ranks.from_first(self.steps())
        faults: list[str] = []
        for step in reversed(steps):
            checkpoint, fault = None, None
            try:
                checkpoint = read(self.path(step), components, self.ranks, place)
                if check is not None:
                    check(checkpoint)
            except DamagedCheckpoint as damage:
                fault = str(damage)
            fault = next((found for found in self.ranks.from_all(fault) if found is not None), None)
            if fault is None:
                assert checkpoint is not None
                return checkpoint, faults
            faults.append(f"{self.path(step).name}: {fault}")
        if steps:
            listed = "\n".join(f"  {fault}" for fault in faults)
            raise NoGoodCheckpoint(
                f"None of the {len(steps)} checkpoints in {self.directory} is whole:\n{listed}\n"
                "Restore one from a backup, or start a new run: foretune train experiment.yaml"
            )
        return None

    def _set_aside(self, path: Path) -> None:
        """Renamed before it is removed: a checkpoint that is half removed must not look like one."""
        path.rename(self.directory / f".removing-{path.name}")

    def _clear_leftovers(self) -> None:
        for pattern in (".writing-*", ".removing-*"):
            for path in self.directory.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
