"""Files that the user named: an error says why one cannot be written."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretune.core.errors import UserError


def write_file(path: Path, text: str) -> None:
    """Writes the file, its folders included; why that cannot be done is the user's to know."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}. Choose another place.") from error


def require_writable(path: Path) -> None:
    """Refuses a place where nothing can be written, before hours are spent on what would be written there."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if there != path.absolute() and not there.is_dir():
        raise UserError(f"{path} cannot be written: {there} is a file, not a folder. Choose another place.")
    if not os.access(there, os.W_OK):
        raise UserError(f"{path} cannot be written: {there} is read-only. Choose another place.")


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """Yields a place of the same name beside the target, to write to until `move` puts it there.

    It is removed in the end, so that a failure leaves nothing that looks like a result. In a folder that exists it is
    inside: the folder may be a link or a mounted disk, and what is around it read-only.
    """
    around = target.resolve() if target.is_dir() else target.parent
    around.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.unfinished-", dir=around) as folder:
        yield Path(folder) / (target.name or "export")


def move(finished: Path, target: Path) -> None:
    """Puts a finished file or folder in its place; what is in a finished folder goes into one that exists."""
    if target.is_dir() and finished.is_dir():
        for entry in sorted(finished.iterdir()):
            entry.rename(target / entry.name)
    else:
        finished.rename(target)
