"""Sources whose samples lie in files: what they share, and the source of image files, one sample per file."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, Protocol, TypeVar

from foretune.core.errors import UserError
from foretune.core.input_files import OutsideFile, open_input, read_opened, shown
from foretune.data import images
from foretune.data.images import Pixels
from foretune.data.memo import Memo, stamp_of
from foretune.data.sources.base import SampleInfo
from foretune.data.sources.fingerprint import content_fingerprint, listed_fingerprint
from foretune.data.sources.packed import is_archive, unpacking

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


class _Sample(Protocol):
    """What all samples that lie in files have in common."""

    @property
    def path(self) -> Path: ...

    @property
    def repeats(self) -> int: ...


SampleT = TypeVar("SampleT", bound=_Sample)


class ListedSource(ABC, Generic[SampleT]):
    """Samples that lie in files, in a fixed order.

    What is learnt about a sample is cached in `memo_dir` until its files change.
    """

    is_generated = False

    def __init__(
        self,
        samples: Sequence[SampleT],
        *,
        kind: str,
        memo_dir: Path | None = None,
        notes: Sequence[str] = (),
        save_every: int = _SAVE_MEMO_EVERY,
    ) -> None:
        """`kind` begins the name of the cache file, which is saved each time `save_every` samples were learnt."""
        self.samples = tuple(samples)
        self._notes = tuple(notes)
        self._infos: list[SampleInfo | None] = [None] * len(self.samples)
        self._num_unknown = len(self.samples)
        self._save_every = save_every
        self._memo = Memo(memo_dir / f"{kind}-{_set_name(self.samples)}.json" if memo_dir else None)

    def __len__(self) -> int:
        return len(self.samples)

    def info(self, index: int) -> SampleInfo:
        """Returns size, caption and fingerprint of a sample."""
        known = self._infos[index]
        if known is None:
            known = self._infos[index] = self._learnt(self.samples[index])
            self._num_unknown -= 1
            if not self._num_unknown or self._memo.num_unsaved >= self._save_every:
                self._memo.save()
        return known

    @abstractmethod
    def pixels(self, index: int) -> Pixels:
        """Returns the decoded image, (H, W, 3)."""

    def name(self, index: int) -> str:
        """Returns the path of the sample."""
        return shown(self.samples[index].path)

    def repeats(self, index: int) -> int:
        """Returns how often an epoch uses the sample."""
        return self.samples[index].repeats

    def notes(self) -> tuple[str, ...]:
        """Returns the notes made when the files were listed."""
        return self._notes

    def fingerprint(self) -> str:
        """Returns a hash over contents, captions and repeats, independent of paths."""
        return listed_fingerprint(self)

    @abstractmethod
    def _learnt(self, sample: SampleT) -> SampleInfo:
        """Reads what is not in the memo."""


class FileSource(ListedSource[FileSample]):
    """Image files in a fixed order. Hashing reads each file once."""

    def __init__(self, samples: Sequence[FileSample], memo_dir: Path | None = None, notes: Sequence[str] = ()) -> None:
        super().__init__(samples, kind="images", memo_dir=memo_dir, notes=notes)

    def pixels(self, index: int) -> Pixels:
        """Returns the decoded file."""
        sample = self.samples[index]
        with _opened(sample) as file:
            pixels = images.decode(read_opened(file), shown(sample.path))
        info = self.info(index)
        if pixels.shape[:2] != (info.height_px, info.width_px):
            raise UserError(f"The image {shown(sample.path)} has changed since this run began. Start the run again.")
        return pixels

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
    """Raised if a folder of data does not exist."""

    def __init__(self, path: str, looked_for: Path, setting: str, holds: str = "images") -> None:
        self.path, self.looked_for = path, looked_for
        super().__init__(
            f"There is no folder {path} (looked for {looked_for}). Set {setting} to the folder of {holds}."
        )


def existing_folder(path: str, setting: str, holds: str = "images") -> Path:
    """Returns the absolute path of a folder, or raises an error that names the setting to fix."""
    folder = Path(path).expanduser().absolute()
    if not folder.exists():
        raise NoFolder(path, folder, setting, holds)
    if is_archive(folder):
        raise UserError(f"{path} is an archive, not a folder. {unpacking(Path(path))}")
    if not folder.is_dir():
        raise UserError(f"{path} is a file, not a folder. Set {setting} to the folder of {holds}.")
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


def _set_name(samples: Sequence[_Sample]) -> str:
    """Returns a memo name for each set of folders that is trained on together."""
    folders = sorted({str(sample.path.parent) for sample in samples})
    return hashlib.blake2b("\n".join(folders).encode(errors="surrogateescape"), digest_size=8).hexdigest()
