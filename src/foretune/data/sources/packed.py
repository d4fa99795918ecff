"""Data that are still in an archive, and the command that unpacks it."""

import shlex
from pathlib import Path

_7Z = ".7z"
_IMPORTED = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def is_archive(path: Path) -> bool:
    """Whether a file is an archive by its name."""
    return path.name.lower().endswith((_7Z, *_IMPORTED)) and path.is_file()


def unpacking(archive: Path) -> str:
    """The command that unpacks an archive, and the folder that it makes."""
    name = shlex.quote(str(archive))
    if not archive.name.lower().endswith(_7Z):
        output = archive.with_name(archive.name.partition(".")[0])
        return f"Run: foretune data import {name} --output {shlex.quote(str(output))} and set data.path={output}"
    folder = shlex.quote(str(archive.parent))
    return (
        f"Run: 7z x {name} -o{folder} (without 7z: pip install py7zr, then python -m py7zr x {name} {folder}) and set "
        f"data.path={archive.parent}"
    )


def packed_note(*folders: Path) -> str:
    """A sentence on the first archive that lies in one of the folders, to end a message; empty if none does."""
    for folder in folders:
        for archive in sorted(folder.iterdir()) if folder.is_dir() else ():
            if is_archive(archive):
                return f" {archive} is not unpacked. {unpacking(archive)}"
    return ""
