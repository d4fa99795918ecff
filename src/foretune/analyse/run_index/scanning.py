"""Which runs a folder holds, and whether any changed: by names, times and sizes of files, without opening one."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from foretune.analyse.evaluations import EVALUATION_FILE

_EXPERIMENT, _RECORD, _EVENTS, _BENCH = "experiment.yaml", "record.json", "events.jsonl", "bench.json"
_YOUNG_S = 2.0
"""A file that changed a moment before it was looked at may change again within the same tick of its file system."""
_ABSENT = "-"


def stamps_of(root: Path, now_s: float | None = None) -> dict[str, str]:
    """Every run directory below a folder, with a stamp that differs once one of the files behind its row does.

    Folders are relative to the root, with slashes; "." is the root itself.
    """
    root_text = str(root)
    now_ns = int((time.time() if now_s is None else now_s) * 1e9)
    return {_relative(path, root_text): stamp for path, stamp in _runs(root_text, now_ns)}


def _runs(folder: str, now_ns: int) -> Iterator[tuple[str, str]]:
    """As `run_data` finds them: below a bench only its own repeats, and no folder that is a link."""
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        experiment = _stamp(f"{path}/{_EXPERIMENT}", now_ns)
        if experiment != _ABSENT:
            yield path, _whole_stamp(path, experiment, now_ns)
            continue
        is_bench = _stamp(f"{path}/{_BENCH}", now_ns) != _ABSENT
        below = _folders(f"{path}/runs" if is_bench else path)
        if is_bench:
            # Only run directories: nothing deeper.
            for inner in below:
                stamp = _stamp(f"{inner}/{_EXPERIMENT}", now_ns)
                if stamp != _ABSENT:
                    yield inner, _whole_stamp(inner, stamp, now_ns)
        else:
            waiting += below


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # Removed in the meantime, or of somebody else: there is nothing to list.
        return []


def _whole_stamp(path: str, experiment: str, now_ns: int) -> str:
    record = _stamp(f"{path}/{_RECORD}", now_ns)
    # The log of a run that has its record is closed, and was read once.
    other = f"{path}/{_EVENTS}" if record == _ABSENT else f"{path}/{EVALUATION_FILE}"
    return f"{experiment} {record} {_stamp(other, now_ns)}"


def _stamp(path: str, now_ns: int) -> str:
    try:
        found = os.stat(path)  # noqa: PTH116 - three times for each of very many runs
    except OSError:
        return _ABSENT
    changed_ns = found.st_mtime_ns
    # What may still change within this tick gets a stamp that no later look repeats.
    young = f"!{now_ns}" if now_ns - changed_ns < _YOUNG_S * 1e9 else ""
    return f"{changed_ns}.{found.st_size}.{found.st_ino}{young}"


def _relative(path: str, root: str) -> str:
    return path[len(root) + 1 :].replace(os.sep, "/") or "."
