"""Brings an index up to date with the run directories, and opens it."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from foretune.analyse.run_index.cells import Row
from foretune.analyse.run_index.run_row import row_of
from foretune.analyse.run_index.scanning import stamps_of
from foretune.analyse.run_index.store import IndexDraft, IndexFile, in_memory, open_stored
from foretune.core.observer import Observer

T = TypeVar("T")
FEWEST_STORED = 500
"""Runs of a folder whose index is stored: fewer are read in about half a second, which is not worth a file."""
_REPORT_EVERY = 100
_CANNOT_STORE = (OSError, sqlite3.Error)


@dataclass(frozen=True)
class Refreshed:
    """An index that agrees with the files, and what that took."""

    index: IndexFile
    num_runs: int
    num_read: int
    """Runs whose files were opened; the others had not changed."""


@contextlib.contextmanager
def refreshed(root: Path, observer: Observer | None = None, *, is_new: bool = False) -> Iterator[Refreshed]:
    """The index of a folder of runs as its files are now. `is_new` reads all of them, whatever is stored."""
    root, observer = root.resolve(), observer or Observer()
    found = stamps_of(root)
    stored = None if is_new else open_stored(root)
    known = {} if stored is None else _stamps(stored)
    if stored is not None and known is not None and known == found:
        with contextlib.closing(stored):
            yield Refreshed(stored, len(found), 0)
        return
    if stored is not None:
        stored.close()
    with contextlib.closing(_updated(root, found, observer, is_new=known is None or is_new)) as index:
        changed = found.items() - (known or {}).items()
        yield Refreshed(index, len(found), len(changed))


def read_index(root: Path, read: Callable[[Refreshed], T], observer: Observer | None = None) -> T:
    """What is read from an index that agrees with the files. Where a page of it is damaged, it is made again."""
    with contextlib.suppress(sqlite3.DatabaseError), refreshed(root, observer) as found:
        return read(found)
    with refreshed(root, observer, is_new=True) as found:
        return read(found)


def _stamps(stored: IndexFile) -> dict[str, str] | None:
    """None where the stored index is damaged."""
    try:
        return stored.stamps()
    except sqlite3.Error:
        return None


def _updated(root: Path, found: Mapping[str, str], observer: Observer, *, is_new: bool) -> IndexFile:
    is_stored = len(found) >= FEWEST_STORED
    if is_stored:
        with contextlib.suppress(*_CANNOT_STORE):
            return _stored(root, found, observer, is_new=is_new)
    index = in_memory()
    _change(index, root, found, observer)
    return index


def _stored(root: Path, found: Mapping[str, str], observer: Observer, *, is_new: bool) -> IndexFile:
    draft = IndexDraft(root, is_new=is_new)
    try:
        try:
            _change(draft.index, root, found, observer)
        except sqlite3.DatabaseError:
            # A damaged copy: nothing of it is used.
            draft.index.close()
            draft.discard()
            draft = IndexDraft(root, is_new=True)
            _change(draft.index, root, found, observer)
    except KeyboardInterrupt:
        # The rows that are there are true, and need not be made again.
        draft.publish()
        raise
    except BaseException:
        draft.index.close()
        raise
    else:
        draft.publish()
        return draft.index
    finally:
        draft.discard()


def _change(index: IndexFile, root: Path, found: Mapping[str, str], observer: Observer) -> None:
    known = index.stamps()
    index.remove(folder for folder, stamp in known.items() if found.get(folder) != stamp)
    changed = [(folder, stamp) for folder, stamp in found.items() if known.get(folder) != stamp]
    index.add(_rows(root, changed, observer))


def _rows(root: Path, changed: list[tuple[str, str]], observer: Observer) -> Iterator[tuple[str, str, Row]]:
    for number, (folder, stamp) in enumerate(changed):
        if number % _REPORT_EVERY == 0 and len(changed) > _REPORT_EVERY:
            observer.preparing("reading runs", number, len(changed))
        yield folder, stamp, row_of(root / folder)
