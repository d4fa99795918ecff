"""A source of image files, one sample per file."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from foretune.core.errors import UserError
from foretune.core.input_files import OutsideFile, open_input, read_opened, shown
from foretune.data import images
from foretune.data.images import Pixels
from foretune.data.memo import Memo, stamp_of
from foretune.data.sources.base import SampleInfo
from foretune.data.sources.fingerprint import content_fingerprint, listed_fingerprint

# An interrupted first scan of a large folder continues from here.
_SAVE_MEMO_EVERY = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSample:
    """One image file with its caption and repeats."""

    path: Path
    caption: str
    repeats: int = 1
    within: Path | None
    """The folder that must contain it, links resolved; None follows links anywhere."""


class FileSource:
    """Image files in a fixed order.

    Hashing reads each file once; size and hash are cached in `memo_dir` until the file changes.
    """

    is_generated = False

    def __init__(self, samples: Sequence[FileSample], memo_dir: Path | None = None, notes: Sequence[str] = ()) -> None:
        self.samples = tuple(samples)
        self._notes = tuple(notes)
        self._infos: list[SampleInfo | None] = [None] * len(self.samples)
        self._num_unknown = len(self.samples)
        self._memo = Memo(memo_dir / f"images-{_set_name(self.samples)}.json" if memo_dir else None)

    def __len__(self) -> int:
        return len(self.samples)

    def info(self, index: int) -> SampleInfo:
        """Returns size, caption and fingerprint of a file."""
        known = self._infos[index]
        if known is None:
            known = self._infos[index] = self._learnt(self.samples[index])
            self._num_unknown -= 1
            if not self._num_unknown or self._memo.num_unsaved >= _SAVE_MEMO_EVERY:
                self._memo.save()
        return known

    def pixels(self, index: int) -> Pixels:
        """Returns the decoded file."""
        sample = self.samples[index]
        with _opened(sample) as file:
            pixels = images.decode(read_opened(file), shown(sample.path))
        info = self.info(index)
        if pixels.shape[:2] != (info.height_px, info.width_px):
            raise UserError(f"The image {shown(sample.path)} has changed since this run began. Start the run again.")
        return pixels

    def name(self, index: int) -> str:
        """Returns the path of the file."""
        return shown(self.samples[index].path)

    def repeats(self, index: int) -> int:
        """Returns how often an epoch uses the file."""
        return self.samples[index].repeats

    def notes(self) -> tuple[str, ...]:
        """Returns the notes made when the files were listed."""
        return self._notes

    def fingerprint(self) -> str:
        """Returns a hash over contents, captions and repeats, independent of paths."""
        return listed_fingerprint(self)

    def _learnt(self, sample: FileSample) -> SampleInfo:
        name = str(sample.path)
        with _opened(sample) as file:
            now = stamp_of([os.fstat(file.fileno())])
            facts = self._memo.recall(name, now)
            if facts is None:
                data = read_opened(file)
                facts = [content_fingerprint(data), *images.size_px(data, shown(name))]
                self._memo.store(name, now, facts)
        fingerprint, width_px, height_px = facts
        return SampleInfo(fingerprint=fingerprint, width_px=width_px, height_px=height_px, caption=sample.caption)


class NoFolder(UserError):
    """Raised if a folder of images does not exist."""

    def __init__(self, path: str, looked_for: Path, setting: str) -> None:
        self.path, self.looked_for = path, looked_for
        super().__init__(f"There is no folder {path} (looked for {looked_for}). Set {setting} to the folder of images.")


def existing_folder(path: str, setting: str) -> Path:
    """Returns the absolute path of a folder, or raises an error that names the setting to fix."""
    folder = Path(path).expanduser().absolute()
    if not folder.exists():
        raise NoFolder(path, folder, setting)
    if not folder.is_dir():
        raise UserError(f"{path} is a file, not a folder. Set {setting} to the folder of images.")
    return folder


def open_data(path: Path, most_bytes: int, within: Path | None) -> BinaryIO:
    """Opens a file of a data folder for reading; one outside it is refused with the setting that allows it."""
    try:
        return open_input(path, most_bytes, within=within)
    except OutsideFile as error:
        raise _outside(error) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{shown(path)} cannot be opened ({reason}). Make it readable, or remove it.") from error


def require_inside(folder: Path, within: Path | None) -> None:
    """Raises if a folder inside a data folder is a link to another place, before it is listed."""
    if within is not None and not folder.resolve().is_relative_to(within.resolve()):
        raise _outside(OutsideFile(folder, str(folder.resolve()), within))


def read_data_text(path: Path, most_bytes: int, within: Path | None) -> str:
    """Reads the text of a file in a data folder, without a byte-order mark."""
    try:
        with open_data(path, most_bytes, within) as file:
            text = read_opened(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{shown(path)} is not text in UTF-8 ({error.reason}). Save it as UTF-8.") from error
    if "\0" in text:
        raise UserError(f"{shown(path)} is not text: it has NUL characters. Save it as text in UTF-8.")
    return text


def _outside(error: OutsideFile) -> UserError:
    return UserError(f"{error} To read it where it is: data.follow_links=true")


def _opened(sample: FileSample) -> BinaryIO:
    return open_data(sample.path, images.MOST_FILE_BYTES, sample.within)


def _set_name(samples: Sequence[FileSample]) -> str:
    """Returns a memo name for each set of folders that is trained on together."""
    folders = sorted({str(sample.path.parent) for sample in samples})
    return hashlib.blake2b("\n".join(folders).encode(errors="surrogateescape"), digest_size=8).hexdigest()
