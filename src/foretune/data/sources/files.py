"""A source that stands on image files, one sample a file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.core.errors import UserError
from foretune.data import images
from foretune.data.images import Pixels
from foretune.data.memo import Memo, stamp
from foretune.data.sources.base import SampleInfo
from foretune.data.sources.fingerprint import content_fingerprint, listed_fingerprint

# An interrupted first reading of a large folder goes on from here.
_SAVE_MEMO_EVERY = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSample:
    """One image file with what it is trained with."""

    path: Path
    caption: str
    repeats: int = 1


class FileSource:
    """Image files in a fixed order.

    Hashing reads each file once; size and hash are remembered under `memo_dir` until the file changes.
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
        """Size, caption and fingerprint of a file."""
        known = self._infos[index]
        if known is None:
            known = self._infos[index] = self._learnt(self.samples[index])
            self._num_unknown -= 1
            if not self._num_unknown or self._memo.num_unsaved >= _SAVE_MEMO_EVERY:
                self._memo.save()
        return known

    def pixels(self, index: int) -> Pixels:
        """The decoded file."""
        path = self.samples[index].path
        pixels = images.decode(_read(path), str(path))
        info = self.info(index)
        if pixels.shape[:2] != (info.height_px, info.width_px):
            raise UserError(f"The image {path} has changed since this run began. Start the run again.")
        return pixels

    def repeats(self, index: int) -> int:
        """How many times an epoch sees the file."""
        return self.samples[index].repeats

    def notes(self) -> tuple[str, ...]:
        """What was noticed when the files were listed."""
        return self._notes

    def fingerprint(self) -> str:
        """Hash over contents, captions and repeats; where the files lie is no part of it."""
        return listed_fingerprint(self)

    def _learnt(self, sample: FileSample) -> SampleInfo:
        name = str(sample.path)
        try:
            now = stamp([sample.path])
        except OSError as error:
            raise _gone(sample.path, error) from error
        facts = self._memo.recall(name, now)
        if facts is None:
            data = _read(sample.path)
            facts = [content_fingerprint(data), *images.size_px(data, name)]
            self._memo.store(name, now, facts)
        fingerprint, width_px, height_px = facts
        return SampleInfo(fingerprint=fingerprint, width_px=width_px, height_px=height_px, caption=sample.caption)


class NoFolder(UserError):
    """A folder of images that is not where it was said to be."""

    def __init__(self, path: str, looked_for: Path, setting: str) -> None:
        self.path, self.looked_for = path, looked_for
        super().__init__(f"There is no folder {path} (looked for {looked_for}). Set {setting} to the folder of images.")


def existing_folder(path: str, setting: str) -> Path:
    """The folder a user named, made absolute, or an error that says which setting to fix."""
    folder = Path(path).expanduser().absolute()
    if not folder.exists():
        raise NoFolder(path, folder, setting)
    if not folder.is_dir():
        raise UserError(f"{path} is a file, not a folder. Set {setting} to the folder of images.")
    return folder


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _gone(path, error) from error


def _gone(path: Path, error: OSError) -> UserError:
    return UserError(f"The image {path} cannot be opened ({error.strerror}). Put it back, or start the run again.")


def _set_name(samples: Sequence[FileSample]) -> str:
    """One memo for each set of folders that is trained on together."""
    folders = sorted({str(sample.path.parent) for sample in samples})
    return hashlib.blake2b("\n".join(folders).encode(), digest_size=8).hexdigest()
