"""Takes images and captions out of an archive into a new folder.

Names decide nothing before they were examined; links, devices and everything that is neither an image nor a caption are
skipped and counted. The folder appears under its name when all of it is written: an interrupted import leaves nothing.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from foretune.core.errors import UserError
from foretune.core.input_files import open_input, shown
from foretune.core.units import bytes_text, counted_text
from foretune.data.archives.limits import ImportLimits
from foretune.data.archives.member import ArchiveReader, Member
from foretune.data.archives.names import NamesTaken, is_hidden, plain, why_refused
from foretune.data.archives.opening import open_archive
from foretune.data.formats import IMAGE_SUFFIXES, METADATA, is_image

_MOST_ARCHIVE_BYTES = 2**50
_NUM_EXAMPLES = 3
_SKIPPED_KINDS = {
    "link": "is a link",
    "device": "is a device or a pipe",
    "sparse": "is a sparse file",
    "encrypted": "is encrypted",
}
_CAPTION = ".txt"


@dataclass
class Skipped:
    """Members that were left out for one reason."""

    num: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        self.num += 1
        if len(self.examples) < _NUM_EXAMPLES:
            self.examples.append(shown(name))


@dataclass(frozen=True)
class ImportedArchive:
    """What was taken from an archive."""

    folder: Path
    num_images: int
    num_captions: int
    num_bytes: int
    skipped: dict[str, Skipped]
    """By the reason."""

    def __str__(self) -> str:
        """What `foretune data import` prints."""
        images, captions = counted_text(self.num_images, "images"), counted_text(self.num_captions, "captions")
        lines = [f"{self.folder}: {images}, {captions}, {bytes_text(self.num_bytes)}"]
        for reason, skipped in sorted(self.skipped.items(), key=lambda item: -item[1].num):
            more = f" and {skipped.num - len(skipped.examples):,} more" if skipped.num > len(skipped.examples) else ""
            lines.append(f"Skipped {skipped.num:,} ({reason}): {', '.join(skipped.examples)}{more}")
        lines.append(f"To train on it: foretune train EXPERIMENT.yaml data.path={shlex.quote(str(self.folder))}")
        return "\n".join(lines)


def import_members(
    archive: Path,
    output: Path,
    limits: ImportLimits,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> ImportedArchive:
    """Writes the images and captions of an archive into a folder that does not exist, or is empty.

    `on_progress` is called with the bytes of the archive that were read, and all of them.

    Raises:
        RefusedFile: the archive is damaged, too large, or no archive.
        UserError: there is no image in it, or the folder has files.
    """
    if os.path.lexists(output) and (output.is_symlink() or not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{shown(output)} is not an empty folder. Choose another: --output DIR")
    with open_input(archive, _MOST_ARCHIVE_BYTES) as file, _appearing(output) as unfinished:
        total_bytes = os.fstat(file.fileno()).st_size
        reader = open_archive(file, archive, limits)
        try:
            importing = _Import(archive, unfinished, limits)
            for member in reader.members():
                importing.take(member, reader)
                on_progress(reader.done_bytes(), total_bytes)
        finally:
            reader.close()
        return importing.finished(output)


class _Import:
    """The folder that is being written, and what was left out of it."""

    def __init__(self, archive: Path, folder: Path, limits: ImportLimits) -> None:
        self._archive, self._folder, self._limits = archive, folder, limits
        self._taken = NamesTaken()
        self._images: set[str] = set()
        self._captions: dict[str, str] = {}
        self._skipped: dict[str, Skipped] = {}
        self._num_members = self._num_bytes = 0

    def take(self, member: Member, reader: ArchiveReader) -> None:
        """Writes a member, or notes why not."""
        self._num_members += 1
        self._limits.require_members(self._archive, self._num_members)
        if member.kind == "folder":
            return
        reason = self._why_not(member)
        if reason is None:
            name = plain(member.name)
            reason = self._written(name, reader) if self._is_image(name) else self._written_text(name, reader)
        if reason is not None:
            self._skipped.setdefault(reason, Skipped()).add(member.name)

    def finished(self, output: Path) -> ImportedArchive:
        """Removes captions without an image, and says what is there."""
        for stem, name in list(self._captions.items()):
            if stem not in self._images:
                self._num_bytes -= (self._folder / name).stat().st_size
                (self._folder / name).unlink()
                del self._captions[stem]
                self._skipped.setdefault("is a text without an image of its name", Skipped()).add(name)
        if not self._images:
            listed = "; ".join(f"{skipped.num:,} {reason}" for reason, skipped in self._skipped.items())
            raise UserError(
                f"{shown(self._archive)} has no image to import{f' ({listed})' if listed else ''}. Images are files "
                f"that end in {', '.join(IMAGE_SUFFIXES)}."
            )
        return ImportedArchive(output, len(self._images), len(self._captions), self._num_bytes, self._skipped)

    def _why_not(self, member: Member) -> str | None:
        if (reason := _SKIPPED_KINDS.get(member.kind)) is not None:
            return reason
        if (reason := why_refused(member.name)) is not None:
            return reason
        name = plain(member.name)
        if is_hidden(name):
            return "is hidden"
        if not (self._is_image(name) or name.endswith(_CAPTION) or name.rpartition("/")[2] == METADATA):
            return "is neither an image nor a caption"
        most_bytes = self._most_bytes(name)
        if member.num_bytes > most_bytes:
            return f"has more than {bytes_text(most_bytes)}"
        return self._taken.why_not(name)

    def _most_bytes(self, name: str) -> int:
        if self._is_image(name):
            return self._limits.image_bytes
        return self._limits.caption_bytes if name.endswith(_CAPTION) else self._limits.metadata_bytes

    @staticmethod
    def _is_image(name: str) -> bool:
        return name.lower().endswith(IMAGE_SUFFIXES)

    def _written(self, name: str, reader: ArchiveReader) -> str | None:
        blocks = reader.blocks()
        first = next(blocks, b"")
        if not is_image(first):
            return "has the name of an image and is none"
        self._write(name, first, blocks)
        self._images.add(name.rpartition(".")[0])
        return None

    def _written_text(self, name: str, reader: ArchiveReader) -> str | None:
        blocks = reader.blocks()
        self._write(name, next(blocks, b""), blocks)
        if name.endswith(_CAPTION):
            self._captions[name.removesuffix(_CAPTION)] = name
        return None

    def _write(self, name: str, first: bytes, others: Iterator[bytes]) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for block in chain((first,), others):
                self._count(block)
                file.write(block)

    def _count(self, block: bytes) -> None:
        self._num_bytes += len(block)
        self._limits.require_total(self._archive, self._num_bytes)


@contextmanager
def _appearing(output: Path) -> Iterator[Path]:
    """Yields a folder beside the output that takes its name in one step at the end, and is removed on failure."""
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{output.name}.unfinished-", dir=output.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~_umask())
        # An empty folder of this name is replaced, one that has files by now is not.
        unfinished.rename(output)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
