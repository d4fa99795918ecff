"""The index as a file: SQLite, replaced as a whole, so that readers and writers need no locks.

A writer works on a copy that only it knows, and moves it to its place in the end. A reader has the file open that was
there when it began. So two programs never wait for each other, nothing can be half written, and network file systems,
where locks of SQLite are not reliable, do no harm. What cannot be read, or is not exactly what this release writes,
counts as absent: the files are read again.
"""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from foretune.analyse.run_index.cells import Cell, Row
from foretune.analyse.run_index.row_format import row_format
from foretune.core.input_files import RefusedFile, open_input
from foretune.record.user_folder import user_folder

FILE_NAME = ".foretune-index.sqlite"
MOST_COLUMNS = 1500
"""SQLite allows 2,000. A column more, such as a quality metric that somebody invented, is left out."""
_APPLICATION_ID = 0x466F5265
_MAGIC = b"SQLite format 3\0"
_STALE_S = 86_400.0
_BATCH = 1000
_SCHEMA = {
    "folders": "CREATE TABLE folders (id INTEGER PRIMARY KEY, folder TEXT NOT NULL, stamp TEXT NOT NULL)",
    "columns": "CREATE TABLE columns (position INTEGER PRIMARY KEY, name TEXT NOT NULL)",
}
_MOST_BYTES = 2**36
"""Some seventy million runs."""
_UNUSABLE = (sqlite3.Error, OSError, ValueError, OverflowError, RefusedFile)


class IndexFile:
    """An open index: of a file that nobody writes any more, or of a copy that is being written."""

    def __init__(self, connection: sqlite3.Connection, columns: Sequence[str]) -> None:
        self._connection = connection
        self._columns = {name: position for position, name in enumerate(columns)}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def stamps(self) -> dict[str, str]:
        """By folder."""
        return dict(self._connection.execute("SELECT folder, stamp FROM folders"))

    def select(self, columns: Sequence[str], where: str, values: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
        """The folder and these columns of every run for which a condition holds; see `quoted`."""
        wanted = ", ".join(["folder", *map(self.quoted, columns)])
        # What is selected is a number of a column or a word of our own; what the user wrote is a parameter.
        yield from self._connection.execute(
            f"SELECT {wanted} FROM folders JOIN runs USING (id) WHERE {where}",  # noqa: S608
            tuple(values),
        )

    def quoted(self, column: str) -> str:
        """A column as SQL names it; NULL where no run has it."""
        return f"c{self._columns[column]}" if column in self._columns else "NULL"

    def remove(self, folders: Iterable[str]) -> None:
        found = [(folder,) for folder in folders]
        self._connection.execute("CREATE TEMP TABLE gone (folder TEXT PRIMARY KEY)")
        self._connection.executemany("INSERT OR IGNORE INTO gone VALUES (?)", found)
        self._connection.execute("DELETE FROM runs WHERE id IN (SELECT id FROM folders JOIN gone USING (folder))")
        self._connection.execute("DELETE FROM folders WHERE folder IN (SELECT folder FROM gone)")
        self._connection.execute("DROP TABLE gone")

    def add(self, rows: Iterable[tuple[str, str, Row]]) -> None:
        """Folder, stamp and row of runs that are not in it."""
        following = iter(rows)
        while batch := list(islice(following, _BATCH)):
            self._add_columns(name for _, _, row in batch for name in row)
            names = self.columns
            marks = ", ".join("?" * (len(names) + 1))
            listed = ", ".join(["id", *(f"c{position}" for position in range(len(names)))])
            insert = f"INSERT INTO runs ({listed}) VALUES ({marks})"  # noqa: S608 - numbers of columns
            for folder, stamp, row in batch:
                made = self._connection.execute("INSERT INTO folders (folder, stamp) VALUES (?, ?)", (folder, stamp))
                self._connection.execute(insert, (made.lastrowid, *map(row.get, names)))

    def commit(self) -> None:
        if self._connection.in_transaction:
            self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def _add_columns(self, names: Iterable[str]) -> None:
        for name in names:
            position = len(self._columns)
            if name in self._columns or position >= MOST_COLUMNS:
                continue
            self._connection.execute(f"ALTER TABLE runs ADD COLUMN c{position}")
            self._connection.execute("INSERT INTO columns VALUES (?, ?)", (position, name))
            self._columns[name] = position


def open_stored(root: Path) -> IndexFile | None:
    """The index of a folder of runs; None where there is none, or none that can be used."""
    for path in _places(root):
        with contextlib.suppress(*_UNUSABLE):
            return _open_finished(path)
    return None


def in_memory() -> IndexFile:
    """An empty index that is never stored."""
    return _empty(sqlite3.connect(":memory:", isolation_level=None))


class IndexDraft:
    """A copy of the stored index that can be changed, and is then put in its place.

    Raises sqlite3.Error or OSError where no file can be made.
    """

    def __init__(self, root: Path, *, is_new: bool) -> None:
        self._root, folder = root, _writable_folder(root)
        _remove_stale(folder)
        self._path = folder / f"{FILE_NAME}.{os.getpid()}-{os.urandom(4).hex()}.writing"
        try:
            copied = None if is_new else self._copy()
            self.index = copied or _empty(_connected(self._path, "rwc"))
        except BaseException:
            self.discard()
            raise

    def publish(self) -> None:
        """Moves it to its place; it can be read on. Where that fails, the next call reads the files again."""
        self.index.commit()
        with contextlib.suppress(OSError):
            self._path.replace(self._path.parent / _name_in(self._path.parent, self._root))

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)

    def _copy(self) -> IndexFile | None:
        for source in _places(self._root):
            with contextlib.suppress(*_UNUSABLE):
                _open_finished(source).close()
                shutil.copyfile(source, self._path)
                connection = _connected(self._path, "rw")
                return IndexFile(connection, _columns_of(connection))
        self.discard()
        return None


def _empty(connection: sqlite3.Connection) -> IndexFile:
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {row_format()}")
    for statement in _SCHEMA.values():
        connection.execute(statement)
    connection.execute("CREATE TABLE runs (id INTEGER PRIMARY KEY)")
    return IndexFile(connection, ())


def _open_finished(path: Path) -> IndexFile:
    # No pipe that nobody writes to, and no link to somewhere else.
    with open_input(path, _MOST_BYTES, within=path.parent) as file:
        if path.is_symlink() or file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("no index")
    connection = _connected(path, "ro&immutable=1")
    try:
        _require_own_schema(connection)
        return IndexFile(connection, _columns_of(connection))
    except BaseException:
        connection.close()
        raise


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    # Nobody else knows the file, or nobody writes it: locks would only fail where the file system has none.
    unlocked = "&vfs=unix-none" if os.name == "posix" else ""
    uri = f"{path.absolute().as_uri()}?mode={mode}{unlocked}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    # Nothing in the file can call a function or hide an inconsistent page.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    if not mode.startswith("ro"):
        # A copy that is lost is made again, so nothing is spent on keeping it whole.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
    return connection


def _require_own_schema(connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) != (_APPLICATION_ID, row_format()):
        raise ValueError("an index of another format")
    found: Mapping[str, str] = dict(connection.execute("SELECT name, sql FROM sqlite_schema"))
    runs = found.get("runs", "")
    positions = range(len(_columns_of(connection)))
    expected = "CREATE TABLE runs (id INTEGER PRIMARY KEY" + "".join(f", c{position}" for position in positions) + ")"
    if dict(found) != {**_SCHEMA, "runs": expected}:
        raise ValueError(f"not what this release writes: {runs[:40]}")


def _columns_of(connection: sqlite3.Connection) -> list[str]:
    found = list(connection.execute("SELECT position, name FROM columns ORDER BY position"))
    if [position for position, _ in found] != list(range(len(found))) or not all(isinstance(n, str) for _, n in found):
        raise ValueError("columns that do not follow one another")
    return [name for _, name in found]


def _places(root: Path) -> tuple[Path, ...]:
    """Beside the runs; where that folder is read-only, in the user's cache."""
    cache = _cache_folder()
    return root / FILE_NAME, cache / _name_in(cache, root)


def _writable_folder(root: Path) -> Path:
    if os.access(root, os.W_OK):
        return root
    cache = _cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _cache_folder() -> Path:
    return user_folder() / "run-indexes"


def _name_in(folder: Path, root: Path) -> str:
    if folder != _cache_folder():
        return FILE_NAME
    return f"{hashlib.blake2b(str(root).encode(errors='surrogateescape'), digest_size=8).hexdigest()}.sqlite"


def _remove_stale(folder: Path) -> None:
    """What a killed process left."""
    for path in folder.glob(f"{FILE_NAME}.*.writing"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()
