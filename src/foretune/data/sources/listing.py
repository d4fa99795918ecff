"""Lists data folders, so that the order is the same everywhere, and names files in messages."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.data.sources.files import existing_folder

_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFolder:
    """A folder of training data."""

    asked: str
    """As the user wrote it."""
    root: Path
    within: Path | None
    """The folder that must contain its files, links resolved; None follows links anywhere."""

    @classmethod
    def existing(cls, path: str, setting: str, *, holds: str, follow_links: bool) -> "DataFolder":
        """Returns an existing folder, or raises an error that names the setting to fix."""
        root = existing_folder(path, setting, holds)
        return cls(asked=path, root=root, within=None if follow_links else root)

    def named(self, paths: Sequence[Path]) -> str:
        """Names the first few files and counts the others."""
        names = ", ".join(shown(path.relative_to(self.root).as_posix()) for path in paths[:_MOST_NAMED])
        return f"{names} and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else names

    def in_order(self, paths: Sequence[Path]) -> list[Path]:
        """Returns paths sorted as text."""
        return sorted(paths, key=lambda path: path.relative_to(self.root).as_posix())

    def linked_note(self, linked: Sequence[Path]) -> list[str]:
        """Returns a note on linked folders that are not read, if there are any."""
        if not linked:
            return []
        note = (
            f"{counted(linked, 'linked folder is', 'linked folders are')} skipped in {self.asked} "
            f"({self.named(linked)}). To read what links lead to: data.follow_links=true"
        )
        return [note]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFolder:
    """One folder with the names in it, without hidden ones."""

    path: Path
    folders: tuple[str, ...]
    files: tuple[str, ...]
    linked: tuple[Path, ...]
    """Links to folders outside of the data folder, which are not followed."""


def counted(paths: Sequence[Path], one: str, many: str) -> str:
    """Returns `1 file is`, `2 files are`."""
    return f"1 {one}" if len(paths) == 1 else f"{len(paths)} {many}"


def walk(place: DataFolder) -> Iterator[ListedFolder]:
    """Lists a folder and all folders inside it; links to folders are followed only if links may lead anywhere."""
    follow_links = place.within is None
    visited: set[tuple[int, int]] = set()
    for parent, folders, files in os.walk(place.root, followlinks=follow_links, onerror=_refuse_folder):
        if follow_links and not _is_first_visit(parent, visited):
            # Links can form a cycle.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = () if follow_links else tuple(Path(parent, name) for name in folders if Path(parent, name).is_symlink())
        yield ListedFolder(
            path=Path(parent),
            folders=tuple(folders),
            files=tuple(name for name in files if not name.startswith(".")),
            linked=tuple(path for path in links if not path.resolve().is_relative_to(place.root.resolve())),
        )


def _is_first_visit(folder: str, visited: set[tuple[int, int]]) -> bool:
    found = Path(folder).stat()
    identity = (found.st_dev, found.st_ino)
    if identity in visited:
        return False
    visited.add(identity)
    return True


def _refuse_folder(error: OSError) -> None:
    raise UserError(
        f"The folder {shown(error.filename)} cannot be listed ({error.strerror}). Make it readable, or take it out of "
        "the data."
    ) from error
