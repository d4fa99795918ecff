"""events.jsonl: append-only, one JSON object a line; raw numbers as they were measured."""

import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretune.core.input_files import open_input, parse_json
from foretune.record.redaction import redacted

MOST_LOG_BYTES = 4 * 2**30
"""Of a log that is read: ten million steps."""
_MOST_LINE_BYTES = 16 * 2**20
_FLUSH_EVERY_S = 1.0
# Made once: a new one for each line takes as long as the line.
_ENCODER = json.JSONEncoder(allow_nan=False)


class EventLog:
    """Appends events. Lines are written whole; those not yet flushed are at most a second old.

    A second is what a kill can lose, and those steps are repeated from the last checkpoint anyway. The last event of a
    run, `ended`, holds a digest of every line before it, so that `foretune check` sees when one was changed.
    """

    def __init__(self, path: Path) -> None:
        _drop_torn_line(path)
        self._digest = new_digest(path.read_bytes() if path.exists() else b"")
        self._file = path.open("a", encoding="utf-8")
        self._last_flush_s = time.monotonic()

    def append(self, kind: str, **fields: Any) -> None:
        event = {"time_s": round(time.time(), 6), "kind": kind, **redacted(fields)}
        if kind == "ended":
            event["digest"] = self._digest.hexdigest()
        line = _as_json(event) + "\n"
        self._digest.update(line.encode())
        self._file.write(line)
        now_s = time.monotonic()
        if now_s - self._last_flush_s > _FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._last_flush_s = time.monotonic()

    def close(self) -> None:
        self._file.close()


class SilentLog(EventLog):
    """Of a process that has no log of its own: the first process of a run writes it for all."""

    def __init__(self) -> None:
        pass

    def append(self, kind: str, **fields: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def new_digest(content: bytes) -> "hashlib.blake2b":
    """Of the lines so far."""
    return hashlib.blake2b(content, digest_size=16)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a run in order; a last line that a kill cut short is left out."""
    with open_input(path, MOST_LOG_BYTES, within=path.parent) as file:
        while line := file.readline(_MOST_LINE_BYTES):
            if line.endswith(b"\n"):
                yield parse_json(line.decode())
            elif len(line) == _MOST_LINE_BYTES:
                raise ValueError(f"a line has more than {_MOST_LINE_BYTES // 2**20} MiB")


def _as_json(event: dict[str, Any]) -> str:
    try:
        return _ENCODER.encode(event)
    except ValueError:  # rare, and looking for it in every number of every step would take longer than writing them
        return _ENCODER.encode(_strict(event))


def _strict(value: Any) -> Any:
    """JSON has no word for NaN and infinity that every reader knows, so they become text that `float` takes."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value


def _drop_torn_line(path: Path) -> None:
    """A kill can leave half a line; the next event must not be glued to it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
