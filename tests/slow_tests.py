"""Tests that take long: how many seconds each, which decides who begins a run and who takes turns."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import pytest

OPTION = "--store-slow-tests"
LEAST_STORED_S = 2
_MARKED_SLOW_S = 20
_QUICK_S = 0.5


def read_seconds(path: Path) -> dict[str, float]:
    """By the id of each test that is known to take long."""
    seconds: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return seconds


def estimated_s(item: pytest.Item, seconds: Mapping[str, float]) -> float:
    """A test that is not listed takes what its marker says."""
    return seconds.get(item.nodeid) or (_MARKED_SLOW_S if item.get_closest_marker("slow") else 0.0)


class SlowTests:
    """Adds up the seconds of each test, prints the twenty files that take longest, and stores the tests on request."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.path = path
        self.stores = bool(config.getoption(OPTION))
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up and teardown are the test's, too. Parts of a test are already in its own seconds."""
        if not isinstance(report, pytest.SubtestReport):
            self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """All workers' seconds together: more than the run took."""
        files: dict[str, float] = {}
        for name, seconds in self.seconds.items():
            files[_file_of(name)] = files.get(_file_of(name), 0.0) + seconds
        total_s = sum(files.values())
        terminalreporter.section(f"slowest 20 files of tests, of {total_s:.0f} s in all")
        for name, seconds in sorted(files.items(), key=lambda found: -found[1])[:20]:
            terminalreporter.write_line(f"{seconds:7.1f} s  {seconds / total_s:4.0%}  {name}")
        if self.stores:
            self._store(terminalreporter.config.rootpath)

    def _store(self, root: Path) -> None:
        """Tests that did not run this time keep what they took before, if their file is still there."""
        others = {name: seconds for name, seconds in read_seconds(self.path).items() if name not in self.seconds}
        known = {name: seconds for name, seconds in others.items() if (root / _file_of(name)).is_file()} | self.seconds
        slow = {name: round(seconds, 1) for name, seconds in sorted(known.items()) if seconds >= LEAST_STORED_S}
        self.path.write_text(json.dumps(slow, indent=1) + "\n", encoding="utf-8")


def _file_of(name: str) -> str:
    return name.partition("::")[0]


def slow_first(items: Sequence[pytest.Item], num_workers: int, seconds: Mapping[str, float]) -> list[pytest.Item]:
    """The order in which no worker is left alone with a slow file at the end.

    `--dist worksteal` gives each worker an equal number of tests in a row and takes some away from the end of a row
    when another worker has none left. So slow files are dealt out over the beginnings of the rows, the slowest first,
    each to the worker with the least to do. Tests of a file stay together, because they share fixtures.
    """
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(_file_of(item.nodeid), []).append(item)
    files_s = {name: sum(estimated_s(item, seconds) for item in file) for name, file in by_file.items()}
    rows: list[list[pytest.Item]] = [[] for _ in range(num_workers)]
    loads_s = [0.0] * num_workers
    for name in sorted((name for name in files_s if files_s[name]), key=lambda name: (-files_s[name], name)):
        worker = loads_s.index(min(loads_s))
        rows[worker] += by_file.pop(name)
        loads_s[worker] += files_s[name]
    rest = (item for file in by_file.values() for item in file)
    num_left = len(items)
    for number, row in enumerate(rows):
        row.extend(islice(rest, max(0, num_left // (num_workers - number) - len(row))))
        num_left -= len(row)
    return [*(item for row in rows for item in row), *rest]


def dealt(items: Iterable[pytest.Item], num_hands: int, seconds: Mapping[str, float]) -> list[list[pytest.Item]]:
    """Deals tests out so that each hand takes about as long: the slowest first, each to the hand with the least.

    Equal ones go round in their order, so that neighbours, which ask the same about another model, come apart.
    """
    hands: list[list[pytest.Item]] = [[] for _ in range(num_hands)]
    loads = [(0.0, 0, number) for number in range(num_hands)]
    for item in sorted(items, key=lambda item: -estimated_s(item, seconds)):
        load_s, num, number = min(loads)
        hands[number].append(item)
        loads[number] = (load_s + max(_QUICK_S, estimated_s(item, seconds)), num + 1, number)
    return hands
