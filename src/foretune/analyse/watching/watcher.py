"""A folder of runs, a study or a sweep, looked at again and again: what runs, what waits, what ended how."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foretune.analyse.run_index.cells import NO_RECORD, Cell, Row
from foretune.analyse.run_index.indexing import FEWEST_STORED, Refreshed, read_index
from foretune.analyse.run_index.run_row import UNREADABLE, row_of
from foretune.analyse.run_index.scanning import stamps_of
from foretune.analyse.run_index.trial_row import is_trial
from foretune.analyse.watching.device_price import usd_per_hour
from foretune.analyse.watching.last_lines import last_lines
from foretune.analyse.watching.watched_run import RunFacts, WatchedRun, watched_run
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.executors.process_identity import is_alive
from foretune.executors.state import TaskState, read_state

MOST_FAILURES = 5
"""Whose last lines are shown: the newest."""
_GOOD = ("finished", "done")
_COLUMNS = (
    "status", "reason", "kind", "wall_s", "prepare_s", "trial_s", "started", "device", "device_memory_bytes",
    "parallel.devices",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run or a trial that ended, and did not finish."""

    path: str
    status: str
    reason: str | None
    log_lines: tuple[str, ...]
    """The last lines that it printed, or of its traceback."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a folder holds at a moment."""

    folder: Path
    now_s: float
    running: tuple[WatchedRun, ...]
    preparing: tuple[str, ...]
    """Trials that a process performs and that have no run directory yet."""
    silent: tuple[WatchedRun, ...]
    """Runs without an end that nobody works on, as far as can be known from here; the newest first."""
    waiting: tuple[str, ...]
    """Trials that nobody performs yet."""
    num_by_status: Mapping[str, int]
    """Of those that have ended."""
    failures: tuple[Failure, ...]
    """The newest that did not finish."""
    spent_usd: float | None
    """By all of them; None where no price is known."""
    num_without_price: int
    """Runs that are not in it."""
    left_s: float | None
    """Until all are done, if the rest takes as long as those that are done; None where it cannot be known."""

    @property
    def num_ended(self) -> int:
        return sum(self.num_by_status.values())

    @property
    def is_over(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self.running or self.preparing or self.waiting)

    @property
    def num_all(self) -> int:
        return self.num_ended + sum(map(len, (self.running, self.preparing, self.silent, self.waiting)))


@dataclass
class Watcher:
    """Looks at a folder. What did not change since the last look is not opened again."""

    folder: Path
    usd_per_hour: float | None = None
    """Of one device; None: the catalogue's."""
    now: Callable[[], float] = time.time
    observer: Observer = field(default_factory=Observer)
    _stamps: dict[str, str] = field(default_factory=dict)
    _rows: dict[str, Row] = field(default_factory=dict)
    _facts: dict[str, tuple[str, RunFacts]] = field(default_factory=dict)
    _lines: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def look(self) -> Watched:
        """What is there now."""
        now_s, root = self.now(), self.folder.resolve()
        self._read_changed(root, stamps_of(root, now_s))
        ended = {path: row for path, row in self._rows.items() if row["status"] != NO_RECORD}
        open_paths = [path for path, row in self._rows.items() if row["status"] == NO_RECORD]
        running: list[WatchedRun] = []
        silent: list[WatchedRun] = []
        preparing: list[str] = []
        waiting: list[str] = []
        for path in sorted(open_paths):
            row = self._rows[path]
            folder = root / path
            if row.get("kind") == "trial":
                (preparing if _is_performed(read_state(folder), None, now_s) else waiting).append(path)
                continue
            try:
                found = self._watched(folder, path, now_s)
            except (UserError, OSError, ValueError) as error:
                ended[path] = {**row, "status": UNREADABLE, "reason": str(error)}
                continue
            (running if found.is_running else silent).append(found)
        failures = sorted(
            (path for path, row in ended.items() if row["status"] not in _GOOD),
            key=lambda path: (str(ended[path].get("started") or ""), path),
            reverse=True,
        )[:MOST_FAILURES]
        spent = [*(self._usd(row) for row in ended.values()), *(run.usd for run in (*running, *silent))]
        known = [usd for usd in spent if usd is not None]
        return Watched(
            folder=self.folder,
            now_s=now_s,
            running=tuple(running),
            preparing=tuple(preparing),
            silent=tuple(sorted(silent, key=lambda run: -(run.last_sign_s or 0.0))),
            waiting=tuple(waiting),
            num_by_status=dict(Counter(str(row["status"]) for row in ended.values()).most_common()),
            failures=tuple(self._failure(root / path, path, ended[path]) for path in failures),
            spent_usd=sum(known) if known else None,
            num_without_price=len(spent) - len(known),
            left_s=_left_s(running, len(preparing), len(waiting), ended),
        )

    def _read_changed(self, root: Path, found: dict[str, str]) -> None:
        for path in self._stamps.keys() - found.keys():
            for known in (self._rows, self._facts, self._lines):
                known.pop(path, None)
        changed = [path for path, stamp in found.items() if self._stamps.get(path) != stamp]
        if len(changed) > FEWEST_STORED:
            self._rows |= read_index(root, _rows_of, self.observer)
        for path in changed:
            self._lines.pop(path, None)
            if len(changed) <= FEWEST_STORED or path not in self._rows:
                self._rows[path] = _shortened(row_of(root / path))
        self._stamps = found

    def _watched(self, folder: Path, path: str, now_s: float) -> WatchedRun:
        # A run that is resumed may have other settings.
        stamp = self._stamps[path].partition(" ")[0]
        if path not in self._facts or self._facts[path][0] != stamp:
            self._facts[path] = stamp, RunFacts.of(folder, self.usd_per_hour)
        facts = self._facts[path][1]
        if not is_trial(folder.parent):
            return watched_run(folder, path, facts, now_s)
        seen = watched_run(folder, path, facts, now_s, task_runs=False)
        is_performed = _is_performed(read_state(folder.parent), seen.last_sign_s, now_s)
        return watched_run(folder, path, facts, now_s, task_runs=True) if is_performed else seen

    def _usd(self, row: Mapping[str, Cell]) -> float | None:
        """The price of the devices of a run that has ended, for as long as it took."""
        seconds = _number(row.get("trial_s")) or (_number(row.get("wall_s")) or 0.0) + (
            _number(row.get("prepare_s")) or 0.0
        )
        price = (
            self.usd_per_hour
            if self.usd_per_hour is not None
            else usd_per_hour(row.get("device"), row.get("device_memory_bytes"))
        )
        if not seconds:
            return 0.0 if row.get("kind") == "trial" else None
        return None if price is None else price * seconds / 3600 * (_number(row.get("parallel.devices")) or 1)

    def _failure(self, folder: Path, path: str, row: Mapping[str, Cell]) -> Failure:
        if path not in self._lines:
            self._lines[path] = last_lines(folder)
        reason = row.get("reason")
        return Failure(
            path=path,
            status=str(row["status"]),
            reason=None if reason is None else str(reason),
            log_lines=self._lines[path],
        )


def _is_performed(state: TaskState, last_sign_s: float | None, now_s: float) -> bool:
    """Whether a process performs a task. One of another machine has to have shown it lately."""
    if state.kind != "running" or state.attempt is None:
        return False
    attempt = state.attempt
    if is_alive(attempt.host, attempt.boot, attempt.pid, attempt.process_start) is not None:
        return True
    return now_s - max(last_sign_s or 0.0, attempt.started_at) < _SILENT_ELSEWHERE_S


_SILENT_ELSEWHERE_S = 300.0


def _rows_of(found: Refreshed) -> dict[str, Row]:
    rows = found.index.select(_COLUMNS, "1", ())
    return {str(path): dict(zip(_COLUMNS, cells, strict=True)) for path, *cells in rows}


def _shortened(row: Row) -> Row:
    return {name: row.get(name) for name in _COLUMNS}


def _number(cell: Cell) -> float | None:
    return float(cell) if isinstance(cell, (int, float)) else None


def _left_s(
    running: list[WatchedRun], num_preparing: int, num_waiting: int, ended: Mapping[str, Mapping[str, Cell]]
) -> float | None:
    """The rest, shared among as many as run now."""
    lengths = [_number(row.get("trial_s")) or _number(row.get("wall_s")) for row in ended.values() if _is_good(row)]
    known = [seconds for seconds in lengths if seconds]
    mean_s = sum(known) / len(known) if known else None
    lefts = [run.left_s if run.left_s is not None else mean_s for run in running] + [mean_s] * num_preparing
    if not lefts or None in lefts or (num_waiting and mean_s is None):
        return None
    work_s = sum(left for left in lefts if left is not None) + num_waiting * (mean_s or 0.0)
    return max(work_s / len(lefts), *(left for left in lefts if left is not None))


def _is_good(row: Mapping[str, Cell]) -> bool:
    return row["status"] in _GOOD
