"""What a source of images answers, whichever files or functions it stands on."""

from dataclasses import dataclass
from typing import Protocol

from foretune.data.images import Pixels


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleInfo:
    """What is known of a sample without decoding it."""

    fingerprint: str
    """Hash of the image's content in hex: equal images have equal ones, wherever they lie."""
    width_px: int
    height_px: int
    caption: str
    """As it is trained with, trigger word included; empty if there is none."""


class Source(Protocol):
    """Unique samples by index. Plain objects only, so that a loader's process can be given one."""

    @property
    def is_generated(self) -> bool:
        """Samples are computed, of one size, seen once an epoch; there may be too many to list them."""

    def __len__(self) -> int:
        """How many unique samples there are; repeats are not counted."""

    def info(self, index: int) -> SampleInfo:
        """Size, caption and fingerprint of a sample; cheap from the second time on."""

    def pixels(self, index: int) -> Pixels:
        """The decoded image, (H, W, 3)."""

    def repeats(self, index: int) -> int:
        """How many times an epoch sees the sample."""

    def notes(self) -> tuple[str, ...]:
        """What a person should know before training on it: files that are not read, captions that are empty."""

    def fingerprint(self) -> str:
        """Hash over images, captions and repeats of all samples in their order; equal on every machine."""
