"""Files that the user named: an error says why one cannot be written."""

import os
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
