"""Which contents of a directory a crash may leave, by what POSIX promises and no more.

A change is durable once its file or directory was synced after it. Of the others any may have reached the disk, in any
order: an entry of a directory without the one made before it, a block of a file without its neighbours, a file's new
length without its content. A rename within a directory is one change. A file's sync does not keep its name.

This is weaker than what journaling file systems do, so what survives here survives there.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from tests.proofs.recorded_writes import Change

BLOCK_BYTES = 4096
_MOST_LOOSE = 14
Tree = dict[str, bytes | None]
"""Contents of files by their path; None is a directory."""


@dataclass(frozen=True)
class _Step:
    """The smallest change that reaches the disk as a whole or not at all; `node` is what must be synced for it."""

    node: int
    entries: dict[str, int | None] = field(default_factory=dict)
    """Of a directory: names that come to lead to a node, or are gone."""
    offset: int = 0
    content: bytes = b""
    size: int | None = None
    """Of a file: its new length, whether or not the content is there."""


@dataclass
class _Disk:
    """Nodes by number: directories with their entries, and files with their content. Number 0 is the directory."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    def copy(self) -> "_Disk":
        return _Disk(
            {number: dict(entries) for number, entries in self.folders.items()},
            {number: bytearray(content) for number, content in self.files.items()},
        )

    def add(self, *, is_folder: bool) -> int:
        number = len(self.folders) + len(self.files)
        if is_folder:
            self.folders[number] = {}
        else:
            self.files[number] = bytearray()
        return number

    def find(self, path: str) -> int:
        number = 0
        for name in Path(path).parts:
            number = self.folders[number][name]
        return number

    def apply(self, step: _Step) -> None:
        for name, number in step.entries.items():
            if number is None:
                self.folders[step.node].pop(name, None)
            else:
                self.folders[step.node][name] = number
        if step.size is not None:
            content = self.files[step.node]
            del content[step.size :]
            content.extend(bytes(step.size - len(content)))
        if step.content:
            content = self.files[step.node]
            content.extend(bytes(max(0, step.offset - len(content))))
            content[step.offset : step.offset + len(step.content)] = step.content

    def tree(self, number: int = 0, path: str = "") -> Tree:
        found: Tree = {}
        for name, inner in self.folders[number].items():
            below = f"{path}{name}"
            if inner in self.files:
                found[below] = bytes(self.files[inner])
            else:
                found[below] = None
                found |= self.tree(inner, f"{below}/")
        return found


class Crashes:
    """All states that a crash may leave while these changes are made to a directory that was durable before."""

    def __init__(self, before: Tree, changes: Sequence[Change]) -> None:
        self._before = _disk_of(before)
        # As the process sees it, which is how paths are understood. It also keeps numbers for what is new.
        seen = self._before.copy()
        self._steps: list[_Step] = []
        self._durable_after: list[tuple[int, frozenset[int]]] = []
        """After each change: how many steps there are, and which of them are durable."""
        durable: set[int] = set()
        for change in changes:
            if change.kind == "sync":
                node = seen.find(change.path)
                durable |= {number for number, step in enumerate(self._steps) if step.node == node}
            for step in _steps_of(change, seen):
                seen.apply(step)
                self._steps.append(step)
            self._durable_after.append((len(self._steps), frozenset(durable)))
        self.after = seen.tree()
        self._blank = _with_nodes_of(self._before, seen)

    def states(self) -> Iterator[tuple[Tree, bool]]:
        """Each state once, and whether it may be left after the last change.

        States that differ in nothing a reader can reach are one state.
        """
        known: set[frozenset[int]] = set()
        trees: set[frozenset[tuple[str, bytes | None]]] = set()
        for is_last, point in ((True, self._durable_after[-1]), *((False, point) for point in self._durable_after)):
            for applied in self._sets_of(*point):
                if applied in known:
                    continue
                known.add(applied)
                tree = self._tree(applied)
                if (key := frozenset(tree.items())) not in trees:
                    trees.add(key)
                    yield tree, is_last

    def drawn(self, rng: random.Random, num: int) -> Iterator[Tree]:
        """States after the last change, drawn at random: where many changes are loose there are too many to try all."""
        num_steps, durable = self._durable_after[-1]
        for _ in range(num):
            yield self._tree(step for step in range(num_steps) if step in durable or rng.random() < 1 / 2)

    @staticmethod
    def _sets_of(num_steps: int, durable: frozenset[int]) -> Iterator[frozenset[int]]:
        """All of them; where that would never end, because little was synced, some."""
        loose = [number for number in range(num_steps) if number not in durable]
        if len(loose) > _MOST_LOOSE:
            rng = random.Random(f"{num_steps} {len(loose)}")
            for _ in range(2**_MOST_LOOSE):
                yield durable.union(number for number in loose if rng.random() < 1 / 2)
            return
        for num in range(len(loose) + 1):
            for chosen in combinations(loose, num):
                yield durable.union(chosen)

    def _tree(self, applied: Iterable[int]) -> Tree:
        disk = self._blank.copy()
        for number in sorted(applied):
            disk.apply(self._steps[number])
        return disk.tree()


def read_tree(directory: Path) -> Tree:
    """What is in a directory."""
    return {
        path.relative_to(directory).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(directory.rglob("*"))
    }


def write_tree(directory: Path, tree: Tree) -> None:
    """Makes a directory of it, which must not be there."""
    directory.mkdir()
    for name, content in sorted(tree.items()):
        if content is None:
            (directory / name).mkdir()
        else:
            (directory / name).write_bytes(content)


def without_sync(changes: Sequence[Change], number: int | None) -> list[Change]:
    """The same changes with one sync left out, or all of them."""
    places = [place for place, change in enumerate(changes) if change.kind == "sync"]
    left_out = set(places) if number is None else {places[number]}
    return [change for place, change in enumerate(changes) if place not in left_out]


def _disk_of(tree: Tree) -> _Disk:
    disk = _Disk()
    for name, content in sorted(tree.items()):
        number = disk.add(is_folder=content is None)
        path = Path(name)
        disk.folders[disk.find(path.parent.as_posix())][path.name] = number
        if content is not None:
            disk.files[number].extend(content)
    return disk


def _with_nodes_of(before: _Disk, seen: _Disk) -> _Disk:
    """The state before, and everything that comes to be: empty, and not yet to be found under any name."""
    blank = before.copy()
    for number in seen.folders.keys() - before.folders.keys():
        blank.folders[number] = {}
    for number in seen.files.keys() - before.files.keys():
        blank.files[number] = bytearray()
    return blank


def _steps_of(change: Change, seen: _Disk) -> Iterator[_Step]:
    path = Path(change.path)
    match change.kind:
        case "create" | "mkdir":
            folder = seen.find(path.parent.as_posix())
            yield _Step(folder, {path.name: seen.add(is_folder=change.kind == "mkdir")})
        case "remove":
            yield _Step(seen.find(path.parent.as_posix()), {path.name: None})
        case "rename":
            to = Path(change.to)
            assert to.parent == path.parent, "a move between directories is two changes, which is not modelled"
            yield _Step(seen.find(path.parent.as_posix()), {path.name: None, to.name: seen.find(change.path)})
        case "resize":
            yield _Step(seen.find(change.path), size=change.offset)
        case "write":
            yield from _blocks(seen, seen.find(change.path), change)
        case "sync":
            pass


def _blocks(seen: _Disk, node: int, change: Change) -> Iterator[_Step]:
    content, end = bytes.fromhex(change.content), change.offset + len(change.content) // 2
    if end > len(seen.files[node]):
        yield _Step(node, size=end)
    start = change.offset
    while start < end:
        stop = min(end, (start // BLOCK_BYTES + 1) * BLOCK_BYTES)
        yield replace(_Step(node), offset=start, content=content[start - change.offset : stop - change.offset])
        start = stop
