"""The interface of image sources."""

from dataclasses import dataclass
from typing import Protocol

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
