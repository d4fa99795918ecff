"""A source of clips, each a video file or a folder of frames."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

from foretune.core.errors import UserError
from foretune.core.input_files import read_opened, shown
from foretune.data import images, videos
from foretune.data.frame_rates import Sampling, Timing, sampling_at
from foretune.data.images import Pixels
from foretune.data.memo import Memo, stamp_of
from foretune.data.sources.base import SampleInfo
from foretune.data.sources.files import ListedSource, open_data
from foretune.data.sources.fingerprint import content_fingerprint

# A clip takes much longer to read than an image.
_SAVE_MEMO_EVERY = 100
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipSample(ABC):
    """One clip with its caption and repeats."""

    path: Path
    caption: str
    repeats: int = 1
    within: Path | None
    """The folder that must contain its files, links resolved; None follows links anywhere."""

    @abstractmethod
    def learnt(self, memo: Memo) -> tuple[SampleInfo, Sampling | None]:
        """Returns what is known about the clip, and which frames are taken; None takes all.

        It is from the memo while the clip's files are unchanged.
        """

    @abstractmethod
    def frames(self, num_frames: int, sampling: Sampling | None) -> list[Pixels]:
        """Returns the first frames; fewer if there are not so many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFile(ClipSample):
    """A clip in a video file."""

    fps: float | None
    """Frames per second to take; None takes every frame."""

    def learnt(self, memo: Memo) -> tuple[SampleInfo, Sampling | None]:
        """Reads the file once for its hash, and once for its timestamps."""
        name = str(self.path)
        with self._opened() as file:
            now = stamp_of([os.fstat(file.fileno())])
            facts = memo.recall(name, now)
            if facts is None:
                facts = _read_video(file, shown(name))
                memo.store(name, now, facts)
        fingerprint, width_px, height_px, num_frames, span_s, tick_s = facts
        timing = Timing(num_frames=num_frames, span_s=Fraction(span_s), tick_s=Fraction(tick_s))
        sampling = None if self.fps is None else sampling_at(self.fps, timing, shown(name))
        info = SampleInfo(
            # Latents are cached by the fingerprint, and depend on which frames are taken.
            fingerprint=content_fingerprint(f"{fingerprint} {self.fps}".encode()),
            width_px=width_px,
            height_px=height_px,
            caption=self.caption,
            num_frames=timing.num_frames if sampling is None else sampling.num_frames(timing),
        )
        return info, sampling

    def frames(self, num_frames: int, sampling: Sampling | None) -> list[Pixels]:
        """Decodes the file up to the last frame that is needed."""
        with self._opened() as file:
            return videos.read_frames(file, shown(self.path), num_frames, sampling)

    def _opened(self) -> BinaryIO:
        return open_data(self.path, videos.MOST_FILE_BYTES, self.within)


def _read_video(file: BinaryIO, name: str) -> list[Any]:
    """Returns what is stored in the memo: hash, width, height, number of frames, time from first to last, tick."""
    digest = hashlib.blake2b()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    facts = videos.read_facts(file, name)
    timing = facts.timing
    times = (timing.num_frames, str(timing.span_s), str(timing.tick_s))
    return [digest.hexdigest(), facts.width_px, facts.height_px, *times]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameFolder(ClipSample):
    """A clip in a folder of images, one for each frame."""

    names: tuple[str, ...]
    """The images, in the order of display."""

    def learnt(self, memo: Memo) -> tuple[SampleInfo, Sampling | None]:
        """Reads each file once."""
        # The order of the files is not in their stamps.
        key = f"{self.path} {content_fingerprint('/'.join(self.names).encode(errors='surrogateescape'))}"
        stats = []
        for name in self.names:
            with open_data(self.path / name, images.MOST_FILE_BYTES, self.within) as file:
                stats.append(os.fstat(file.fileno()))
        now = stamp_of(stats)
        stored = memo.recall(key, now)
        if stored is None:
            stored = self._read()
            memo.store(key, now, stored)
        fingerprint, width_px, height_px = stored
        info = SampleInfo(
            fingerprint=fingerprint,
            width_px=width_px,
            height_px=height_px,
            caption=self.caption,
            num_frames=len(self.names),
        )
        return info, None

    def frames(self, num_frames: int, sampling: Sampling | None) -> list[Pixels]:
        """Decodes the first files."""
        return [images.decode(data, shown(path)) for path, data in self._contents(num_frames)]

    def _read(self) -> list[Any]:
        """Returns the fingerprint, the width and the height."""
        fingerprints, sizes_px = [], []
        for path, data in self._contents(len(self.names)):
            fingerprints.append(content_fingerprint(data))
            sizes_px.append(images.size_px(data, shown(path)))
            if sizes_px[-1] != sizes_px[0]:
                raise UserError(
                    f"The frames of {shown(self.path)} have different sizes: {shown(self.names[0])} has "
                    f"{sizes_px[0][0]} x {sizes_px[0][1]} px, {shown(path.name)} has {sizes_px[-1][0]} x "
                    f"{sizes_px[-1][1]} px. Scale them to one size, or give each clip its own folder."
                )
        return [content_fingerprint(" ".join(fingerprints).encode()), *sizes_px[0]]

    def _contents(self, num_frames: int) -> Iterator[tuple[Path, bytes]]:
        for name in self.names[:num_frames]:
            with open_data(self.path / name, images.MOST_FILE_BYTES, self.within) as file:
                yield self.path / name, read_opened(file)


class ClipFiles(ListedSource[ClipSample]):
    """Clips in a fixed order."""

    def __init__(self, clips: Sequence[ClipSample], memo_dir: Path | None = None, notes: Sequence[str] = ()) -> None:
        super().__init__(clips, kind="clips", memo_dir=memo_dir, notes=notes, save_every=_SAVE_MEMO_EVERY)
        self._samplings: dict[Path, Sampling | None] = {}

    def pixels(self, index: int) -> Pixels:
        """Returns the first frame."""
        return self.frames(index, 1)[0]

    def frames(self, index: int, num_frames: int) -> list[Pixels]:
        """Returns the first frames, each (H, W, 3)."""
        info = self.info(index)
        assert 1 <= num_frames <= info.num_frames, "a clip has no more frames than its info says"
        sample = self.samples[index]
        frames = sample.frames(num_frames, self._samplings[sample.path])
        shapes = {frame.shape[:2] for frame in frames}
        if len(frames) < num_frames or shapes != {(info.height_px, info.width_px)}:
            raise UserError(
                f"The clip {self.name(index)} has changed since this run began, or it is damaged: {info.num_frames} "
                f"frames of {info.width_px} x {info.height_px} px were expected. Start the run again; if it fails "
                "again, replace the clip."
            )
        return frames

    def _learnt(self, sample: ClipSample) -> SampleInfo:
        info, self._samplings[sample.path] = sample.learnt(self._memo)
        return info
