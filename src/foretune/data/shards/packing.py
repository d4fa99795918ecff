"""Packs a source of images or clips into shards, shuffled, and continues where an earlier attempt stopped."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, cast

import numpy as np
from PIL import Image

from foretune.core.draws import Permutation
from foretune.core.errors import UserError
from foretune.core.input_files import parse_json, read_opened, shown
from foretune.core.units import bytes_text, counted_text
from foretune.data import images, videos
from foretune.data.images import Pixels
from foretune.data.shards.index import SampleFacts
from foretune.data.shards.layout import MANIFEST, ShardEntry
from foretune.data.shards.retrying import Retry
from foretune.data.shards.stores import ShardStore
from foretune.data.shards.table import MOST_SIDE_PX
from foretune.data.shards.writer import (
    PackedSample,
    ShardLimits,
    ShardWriter,
    finished_shards,
    read_index,
    write_manifest,
)
from foretune.data.sources.base import Source
from foretune.data.sources.clip_files import ClipFiles, FrameFolder
from foretune.data.sources.files import FileSource, open_data
from foretune.data.sources.fingerprint import content_fingerprint

UNFINISHED = "unfinished.json"
_MOST_NOTE_BYTES = 2**16
_DIGITS = 9
_SUFFIX_OF = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif"}
_SEED = 0


class Packable(Protocol):
    """What is packed: samples by number, as files."""

    def __len__(self) -> int: ...

    def sample(self, number: int) -> tuple[dict[str, bytes], SampleFacts]:
        """Returns the main member by its suffix, and what is known about it."""


@dataclass(frozen=True, kw_only=True)
class PackedSet:
    """What was packed."""

    where: str
    holds: str
    num_samples: int
    num_captions: int
    num_shards: int
    num_bytes: int
    num_index_bytes: int
    num_shards_before: int
    """Shards that an earlier attempt had finished."""
    fingerprint: str

    def __str__(self) -> str:
        """What `foretune data pack` prints."""
        before = f" ({self.num_shards_before:,} were there already)" if self.num_shards_before else ""
        samples, captions = counted_text(self.num_samples, self.holds), counted_text(self.num_captions, "captions")
        sizes = f"{bytes_text(self.num_bytes)} and {bytes_text(self.num_index_bytes)} of indexes"
        return (
            f"{self.where}: {samples}, {captions}, {counted_text(self.num_shards, 'shards')}{before}, {sizes}\n"
            f"To train on it: foretune train EXPERIMENT.yaml data.kind=shards data.path={self.where}"
        )


def pack(
    source: Packable,
    store: ShardStore,
    *,
    holds: str = "images",
    source_name: str = "",
    limits: ShardLimits = ShardLimits(),  # noqa: B008 - frozen
    shuffled: bool = True,
    retry: Retry = Retry(),  # noqa: B008 - frozen
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> PackedSet:
    """Writes all samples of a source into shards, then the manifest.

    Samples are shuffled once, so that each shard is a fair part of the whole; training shuffles shards and samples
    again in each epoch. A set that is finished is refused; one that was interrupted is continued if it was begun with
    the same settings, and the samples that are there are compared with the source.
    """
    total = len(source)
    if not total:
        raise UserError("There is no sample to pack.")
    _begin(store, retry, _settings(total, holds, source_name, limits, shuffled=shuffled))
    order: Permutation | range = Permutation(total, _SEED) if shuffled else range(total)
    before = list(finished_shards(store, retry=retry))
    num_done = sum(entry.num_samples for entry in before)
    _require_same(source, store, retry, before, order)
    on_progress(num_done, total)
    with ShardWriter(store, first_number=len(before), limits=limits, retry=retry) as writer:
        for number in range(num_done, total):
            writer.add(_packed(source, order[number], number))
            on_progress(number + 1, total)
    entries = [*before, *writer.entries]
    manifest = write_manifest(store, entries, holds=holds, retry=retry)
    retry.call(f"Removing {store.where(UNFINISHED)}", lambda: store.remove(UNFINISHED))
    return PackedSet(
        where=store.where(),
        holds=holds,
        num_samples=manifest.num_samples,
        num_captions=sum(entry.num_captions for entry in entries),
        num_shards=len(entries),
        num_bytes=manifest.num_bytes,
        num_index_bytes=manifest.table_bytes + sum(entry.index_bytes for entry in entries),
        num_shards_before=len(before),
        fingerprint=manifest.fingerprint,
    )


def _packed(source: Packable, number: int, key: int) -> PackedSample:
    members, facts = source.sample(number)
    if max(facts.width_px, facts.height_px) > MOST_SIDE_PX:
        raise UserError(
            f"Sample {number} has {facts.width_px:,} x {facts.height_px:,} px; sides of at most {MOST_SIDE_PX:,} px "
            "are packed. Scale it down, or take it out of the data."
        )
    captions = {"txt": facts.caption.encode()} if facts.caption else {}
    return PackedSample(key=f"{key:0{_DIGITS}d}", members={**members, **captions}, facts=facts)


def _settings(total: int, holds: str, source_name: str, limits: ShardLimits, *, shuffled: bool) -> dict[str, object]:
    return {
        "num_samples": total,
        "holds": holds,
        "source": source_name,
        "max_bytes": limits.max_bytes,
        "max_samples": limits.max_samples,
        "shuffled": shuffled,
    }


def _begin(store: ShardStore, retry: Retry, settings: dict[str, object]) -> None:
    """Notes how the set is packed, or compares it with the note of the attempt before."""
    if retry.call(f"The file {store.where(MANIFEST)}", lambda: store.num_bytes(MANIFEST)) is not None:
        raise UserError(f"{store.where()} is a packed set already. Choose another OUTPUT, or remove it first.")
    note = retry.call(f"The file {store.where(UNFINISHED)}", lambda: store.read_small(UNFINISHED, _MOST_NOTE_BYTES))
    if note is None:
        if names := retry.call(store.where(), store.names):
            raise UserError(
                f"{store.where()} is not empty ({shown(names[0])} and others) and was not begun by this command. "
                "Choose another OUTPUT."
            )
        retry.call(f"Writing {store.where(UNFINISHED)}", lambda: store.write(UNFINISHED, json.dumps(settings).encode()))
        return
    try:
        begun = parse_json(note)
    except ValueError:
        begun = None
    if begun != settings:
        raise UserError(
            f"{store.where()} was begun with other settings or other data. Repeat them to continue it, or remove it: "
            f"then {shown(note.decode(errors='replace'))}, now {shown(json.dumps(settings))}"
        )


def _require_same(
    source: Packable, store: ShardStore, retry: Retry, before: Sequence[ShardEntry], order: Permutation | range
) -> None:
    """Compares the first and last sample of each shard that is there with the source."""
    starts = [0, *accumulate(entry.num_samples for entry in before)]
    for entry, start in zip(before, starts, strict=False):
        index = read_index(store, retry, entry)
        for place in {0, entry.num_samples - 1}:
            if index.facts(place) != source.sample(order[start + place])[1]:
                raise UserError(
                    f"{store.where(entry.name)} holds other data than the source has now. Remove {store.where()}, and "
                    "pack it again."
                )


class PackableSource:
    """The samples of a data source: the bytes of their files, or PNG for those that are generated."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def sample(self, number: int) -> tuple[dict[str, bytes], SampleFacts]:
        source = self._source
        caption = source.info(number).caption
        if isinstance(source, ClipFiles):
            return _clip(source, number, caption)
        data = _file(source, number)
        width_px, height_px = images.size_px(data, source.name(number))
        # Decoded once, so that a broken image is found here and not on the day it is trained on.
        images.decode(data, source.name(number))
        facts = SampleFacts(
            fingerprint=content_fingerprint(data), caption=caption, width_px=width_px, height_px=height_px
        )
        return {_suffix(data): data}, facts


def _file(source: Source, number: int) -> bytes:
    if isinstance(source, FileSource):
        sample = source.samples[number]
        with open_data(sample.path, images.MOST_FILE_BYTES, sample.within) as file:
            return read_opened(file)
    return _png(source.pixels(number))


def _png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _suffix(data: bytes) -> str:
    with Image.open(io.BytesIO(data), formats=images.FORMATS) as image:
        return _SUFFIX_OF[cast("str", image.format)]


def _clip(source: ClipFiles, number: int, caption: str) -> tuple[dict[str, bytes], SampleFacts]:
    sample = source.samples[number]
    if isinstance(sample, FrameFolder):
        raise UserError(
            f"{source.name(number)} is a folder of frames; clips are packed from video files. Join its frames, for "
            "example: ffmpeg -i %04d.png clip.mp4"
        )
    name = source.name(number)
    with open_data(sample.path, videos.MOST_FILE_BYTES, sample.within) as file:
        found = videos.read_facts(file, name)
        file.seek(0)
        data = read_opened(file)
    timing = found.timing
    facts = SampleFacts(
        fingerprint=content_fingerprint(data),
        caption=caption,
        width_px=found.width_px,
        height_px=found.height_px,
        num_frames=timing.num_frames,
        timing=(*timing.span_s.as_integer_ratio(), *timing.tick_s.as_integer_ratio()),
    )
    return {sample.path.suffix.lower().lstrip("."): data}, facts
