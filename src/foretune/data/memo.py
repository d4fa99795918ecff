"""What was learnt from files, remembered until they change, so that a second start is quick."""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_VERSION = 1
# A file that was written this recently could change again without a new time of change on a coarse file
# system.
_SETTLED_AFTER_NS = 2_000_000_000


class Stamp(NamedTuple):
    """The sizes and times of change of some files: as long as it is equal, so are they."""

    text: str
    is_settled: bool
    """Old enough that a later change would show."""


def stamp(files: Iterable[Path]) -> Stamp:
    """The stamp of files in the given order; symbolic links are followed."""
    return stamp_of([file.stat() for file in files])


def stamp_of(stats: Sequence[os.stat_result]) -> Stamp:
    """The stamp of files that have been examined."""
    newest_ns = max((stat.st_mtime_ns for stat in stats), default=0)
    text = ",".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)
    return Stamp(text, is_settled=time.time_ns() - newest_ns > _SETTLED_AFTER_NS)


class Memo:
    """Names to JSON values, each valid for one stamp; lost or damaged, it costs time and nothing else."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, list[Any]] = _read(path) if path else {}
        self.num_unsaved = 0

    def recall(self, name: str, now: Stamp) -> Any | None:
        """The value that was stored for these very files, or None."""
        stored = self._entries.get(name)
        return stored[1] if stored is not None and stored[0] == now.text else None

    def store(self, name: str, now: Stamp, value: Any) -> None:
        """Remember a value; if the files are too fresh to trust their times, do not."""
        if now.is_settled:
            self._entries[name] = [now.text, value]
            self.num_unsaved += 1

    def save(self) -> None:
        """Write all entries at once; of two writers the later one wins."""
        if self._path is None or not self.num_unsaved:
            return
        self.num_unsaved = 0
        # Where the cache cannot be written, the next start reads the files again: slower, not wrong.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
            unfinished.write_text(json.dumps({"version": _VERSION, "entries": self._entries}), encoding="utf-8")
            unfinished.replace(self._path)


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return {}
    entries = document.get("entries")
    return entries if isinstance(entries, dict) else {}
