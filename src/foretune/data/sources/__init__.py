"""Data sources: one file per kind, opened by name."""

from collections.abc import Callable
from typing import Any

from foretune.choices.data import Data
from foretune.core.errors import Mistakes
from foretune.core.registry import Registry
from foretune.data.buckets import Bucket
from foretune.data.sources.base import IndexedSource, SampleInfo, Source

__all__ = ["SOURCES", "SampleInfo", "Source", "has_captions", "open_source", "scan"]

_MOST_BROKEN = 20
_Opener = Callable[[Any, Bucket], Source]

SOURCES: Registry[_Opener] = Registry(
    "source of data",
    {
        "folder": "foretune.data.sources.folder:open_folder",
        "cifar10": "foretune.data.sources.cifar10:open_cifar10",
        "huggingface": "foretune.data.sources.huggingface:open_huggingface",
        "clips": "foretune.data.sources.clips:open_clips",
        "shards": "foretune.data.sources.shards:open_shards",
        "shapes": "foretune.data.sources.moving_shapes:open_shapes",
    },
)


def open_source(choice: Data, *, largest: Bucket) -> Source:
    """Opens the source of an experiment. Generated samples are made at this size; others are cropped later."""
    return SOURCES[choice.kind](choice, largest)


def scan(source: Source, on_progress: Callable[[int, int], None] | None = None, what: str = "images") -> None:
    """Reads size and hash of every sample that comes from a file of its own, with progress.

    `on_progress` is called with the number read so far and the total. Errors of broken files are raised here, all at
    once; after the twentieth no more are looked for.
    """
    if source.is_generated or isinstance(source, IndexedSource):
        return
    mistakes = Mistakes()
    for index in range(len(source)):
        mistakes.attempt(source.info, index)
        if len(mistakes) == _MOST_BROKEN:
            mistakes.raise_all(f"The data ({index + 1:,} of {len(source):,} {what} checked)")
        if on_progress is not None:
            on_progress(index + 1, len(source))
    mistakes.raise_all("The data")


def has_captions(source: Source) -> bool:
    """Whether any sample has a caption."""
    if isinstance(source, IndexedSource):
        return source.num_captions > 0
    return any(source.info(index).caption for index in range(len(source)))
