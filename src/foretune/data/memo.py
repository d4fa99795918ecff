"""Caches facts about files until they change, so that a second start is fast."""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foretune.core.input_files import RefusedFile, read_json

_VERSION = 1
_ENTRY_LENGTH = 2
"""A stamp and a value."""
_MOST_BYTES = 2 * 2**30
"""Ten million images take as much."""
# On a coarse file system, a file that was written this recently could change again without a new modification time.
_SETTLED_AFTER_NS = 2_000_000_000


class Stamp(NamedTuple):
    """Sizes and modification times of files: while it is equal, the files are unchanged."""

    text: str
    is_settled: bool
    """Whether the files are old enough that a later change would be visible."""


def stamp(files: Iterable[Path]) -> Stamp:
    """Returns the stamp of files in the given order; follows symbolic links."""
    return stamp_of([file.stat() for file in files])


def stamp_of(stats: Sequence[os.stat_result]) -> Stamp:
    """Returns the stamp of files from their stat results."""
    newest_ns = max((stat.st_mtime_ns for stat in stats), default=0)
    text = ",".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)
    return Stamp(text, is_settled=time.time_ns() - newest_ns > _SETTLED_AFTER_NS)


class Memo:
    """JSON values by name, each valid for one stamp; if it is lost or damaged, it only costs time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, list[Any]] = _read(path) if path else {}
        self.num_unsaved = 0

    def recall(self, name: str, now: Stamp) -> Any | None:
        """Returns the value stored for exactly these files, or None."""
        stored = self._entries.get(name)
        return stored[1] if stored is not None and stored[0] == now.text else None

    def store(self, name: str, now: Stamp, value: Any) -> None:
        """Stores a value, unless the files are too recent to trust their times."""
        if now.is_settled:
            self._entries[name] = [now.text, value]
            self.num_unsaved += 1

    def save(self) -> None:
        """Writes all entries at once; of two writers the later one wins."""
        if self._path is None or not self.num_unsaved:
            return
        self.num_unsaved = 0
        # If the cache cannot be written, the next start reads the files again: slower, but correct.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
            unfinished.write_text(json.dumps({"version": _VERSION, "entries": self._entries}), encoding="utf-8")
            unfinished.replace(self._path)


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        document = read_json(path, _MOST_BYTES)
    except (OSError, ValueError, RefusedFile):
        return {}
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return {}
    entries = document.get("entries")
    if not isinstance(entries, dict):
        return {}
    return {name: entry for name, entry in entries.items() if isinstance(entry, list) and len(entry) == _ENTRY_LENGTH}
