"""Files that are either old or new, never half."""

import os
from pathlib import Path

from foretune.record.redaction import redacted_text


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one step that survives a power cut; if that fails, the old file is as it was.

    Secrets in it are not written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(redacted_text(text))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes renames in a directory durable; not every platform lets a directory be opened."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
