"""The interface of sources of images and clips."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from foretune.data.images import Pixels


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleInfo:
    """What is known about a sample without decoding it."""

    fingerprint: str
    """Hash of the image's content in hex: equal for equal images, wherever they are stored."""
    width_px: int
    height_px: int
    caption: str
    """The training caption, including the trigger word; empty if there is none."""
    num_frames: int = 1
    """Frames of a clip, at the frame rate that it is read with; 1 for an image."""


class Source(Protocol):
    """Unique samples by index. It must be picklable for worker processes."""

    @property
    def is_generated(self) -> bool:
        """Whether samples are computed, of one size, and used once per epoch; there may be too many to list."""

    def __len__(self) -> int:
        """Returns the number of unique samples, without repeats."""

    def info(self, index: int) -> SampleInfo:
        """Returns size, caption and fingerprint of a sample; cached after the first call."""

    def pixels(self, index: int) -> Pixels:
        """Returns the decoded image, (H, W, 3)."""

    def name(self, index: int) -> str:
        """Returns what a message calls the sample, such as its path."""

    def repeats(self, index: int) -> int:
        """Returns how often an epoch uses the sample."""

    def notes(self) -> tuple[str, ...]:
        """Returns what a user should know before training: files that are not read, empty captions."""

    def fingerprint(self) -> str:
        """Returns a hash over images, captions and repeats of all samples in order; equal on every machine."""


@runtime_checkable
class ClipSource(Source, Protocol):
    """A source whose samples can have more than one frame."""

    def frames(self, index: int, num_frames: int) -> Sequence[Pixels]:
        """Returns the first frames of a clip, each (H, W, 3); `num_frames` is at most the number it has."""


class IndexedSource(ABC):
    """A source with more samples than can be asked one by one, whose index says at once what they are."""

    @property
    @abstractmethod
    def num_captions(self) -> int:
        """Number of samples with a caption."""

    @property
    @abstractmethod
    def shard_ends(self) -> Sequence[int]:
        """The end of each shard's samples in the numbering of all."""

    @property
    @abstractmethod
    def shards_per_window(self) -> int:
        """Number of shards whose samples are shuffled together."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of samples."""

    @abstractmethod
    def rows(self) -> npt.NDArray[np.void]:
        """Returns `width_px`, `height_px`, `num_frames` and the number of the split of each sample."""

    @abstractmethod
    def held_out(self, share: float) -> npt.NDArray[np.bool_]:
        """Whether each sample is held out, by the rule of `data.split`."""


def frames_of(source: Source, index: int, num_frames: int) -> Sequence[Pixels]:
    """Returns the first frames of a sample; an image is its only frame."""
    if isinstance(source, ClipSource):
        return source.frames(index, num_frames)
    assert num_frames == 1, "an image has one frame"
    return [source.pixels(index)]
