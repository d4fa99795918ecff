"""Which runs a folder holds, and whether any changed: by names, times and sizes of files, without opening one."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from foretune.analyse.evaluations import EVALUATION_FILE
from foretune.executors.task_files import OUTCOME, TASK
from foretune.sweeps.trial_facts import SWEEP_FILE, TRIAL, TRIALS

_EXPERIMENT, _RECORD, _EVENTS, _BENCH = "experiment.yaml", "record.json", "events.jsonl", "bench.json"
_TASK_FILES = frozenset({TASK, OUTCOME, TRIAL})
_YOUNG_S = 2.0
"""A file that changed a moment before it was looked at may change again within the same tick of its file system."""
_ABSENT = "-"


def stamps_of(root: Path, now_s: float | None = None) -> dict[str, str]:
    """Every run directory below a folder, with a stamp that differs once one of the files behind its row does.

    A trial of a sweep that has no run directory counts as one. Folders are relative to the root, with slashes; "." is
    the root itself.
    """
    root_text = str(root)
    now_ns = int((time.time() if now_s is None else now_s) * 1e9)
    return {_relative(path, root_text): stamp for path, stamp in _below(root_text, now_ns)}


def _below(path: str, now_ns: int) -> Iterator[tuple[str, str]]:
    """As `run_data` finds runs: below a bench only its own repeats, and no folder that is a link."""
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        experiment = _stamp(f"{folder}/{_EXPERIMENT}", now_ns)
        if experiment != _ABSENT:
            yield folder, _run_stamp(folder, experiment, now_ns)
            continue
        names, folders = _entries(folder)
        if _BENCH in names:
            yield from _runs_among(_entries(f"{folder}/runs")[1], now_ns)
        elif names & _TASK_FILES:
            yield from _of_trial(folder, folders, now_ns)
        elif SWEEP_FILE in names:
            # What else a sweep has performed is no result, such as the measurement of an idle process.
            waiting.append(f"{folder}/{TRIALS}")
        else:
            waiting += folders


def _of_trial(trial: str, folders: list[str], now_ns: int) -> Iterator[tuple[str, str]]:
    """Its runs, or the trial itself where it made none."""
    stamp = " ".join(_stamp(f"{trial}/{name}", now_ns) for name in sorted(_TASK_FILES))
    runs = list(_runs_among(folders, now_ns))
    yield from ((path, f"{own} {stamp}") for path, own in runs or [(trial, "")])


def _runs_among(folders: list[str], now_ns: int) -> Iterator[tuple[str, str]]:
    for folder in folders:
        experiment = _stamp(f"{folder}/{_EXPERIMENT}", now_ns)
        if experiment != _ABSENT:
            yield folder, _run_stamp(folder, experiment, now_ns)


def _entries(path: str) -> tuple[set[str], list[str]]:
    """Names of files, and paths of folders."""
    names, folders = set(), []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    names.add(entry.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # Removed in the meantime, or of somebody else: there is nothing to list.
        return set(), []
    return names, folders


def _run_stamp(path: str, experiment: str, now_ns: int) -> str:
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
