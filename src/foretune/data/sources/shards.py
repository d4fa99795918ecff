"""A packed set of shards, on this disk or streamed from an address."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from foretune.choices.addresses import is_remote
from foretune.choices.data import ShardsData
from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.data import images, videos
from foretune.data.buckets import Bucket
from foretune.data.frame_rates import Sampling, Timing, sampling_at
from foretune.data.images import Pixels
from foretune.data.shards.ahead import ReadAhead
from foretune.data.shards.cache import CachedStore, ShardCache
from foretune.data.shards.index import IndexedSample, SampleFacts
from foretune.data.shards.reader import ShardReader, read_manifest
from foretune.data.shards.retrying import Retry
from foretune.data.shards.stores import Patience, open_store
from foretune.data.shards.table import Rows, is_held_out
from foretune.data.sources.base import IndexedSource, SampleInfo
from foretune.data.sources.captions import with_trigger
from foretune.data.sources.files import existing_folder
from foretune.data.sources.fingerprint import content_fingerprint
from foretune.data.window_order import WindowOrder

_GIB = 2**30
_WINDOWS_OF_INDEXES = 3
_FEWEST_INDEXES = 8
_SUFFIXES = (*images.SUFFIXES, *videos.SUFFIXES)


def open_shards(choice: ShardsData, largest: Bucket) -> "ShardSource":  # noqa: ARG001
    """Opens a set: reads its manifest and its table, and no shard."""
    return open_shard_source(choice)


def open_shard_source(
    choice: ShardsData,
    *,
    retry: Retry = Retry(),  # noqa: B008 - frozen
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> "ShardSource":
    """The same with the waits of a test."""
    if not is_remote(choice.path):
        existing_folder(choice.path, "data.path", "shards")
    store = open_store(choice.path, patience)
    manifest = read_manifest(store, retry)
    if manifest.holds not in ("images", "clips"):
        raise UserError(
            f"{store.where()} holds {shown(manifest.holds)}, not images or clips. Set data.path to a set that "
            "`foretune data pack` made; one that `foretune data encode` made is read with data.encoded."
        )
    cache = None
    if is_remote(choice.path):
        folder = Path(choice.cache_dir).expanduser() / "shards"
        cache = ShardCache(folder, max_bytes=int(choice.shard_cache_gib * _GIB), retry=retry)
        store = CachedStore(store, cache, manifest)
    max_indexes = max(_FEWEST_INDEXES, _WINDOWS_OF_INDEXES * choice.shuffle_shards)
    return ShardSource(ShardReader(store, manifest, retry=retry, max_indexes=max_indexes), choice, cache)


class ShardSource(IndexedSource):
    """The samples of a set, by number."""

    is_generated = False

    def __init__(self, reader: ShardReader, choice: ShardsData, cache: ShardCache | None = None) -> None:
        self.reader, self.cache = reader, cache
        self._choice = choice
        self._rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.reader)

    @property
    def num_captions(self) -> int:
        """Number of samples with a caption."""
        return len(self) if self._choice.trigger else sum(s.num_captions for s in self.reader.manifest.shards)

    @property
    def shard_ends(self) -> Sequence[int]:
        """The end of each shard's samples."""
        return self.reader.ends

    @property
    def shards_per_window(self) -> int:
        """Number of shards whose samples are shuffled together."""
        return self._choice.shuffle_shards

    def rows(self) -> npt.NDArray[np.void]:
        """Returns the table of all samples, with frames as they are taken."""
        if self._rows is None:
            rows = self.reader.table()
            if self._choice.fps is not None:
                rows = rows.copy()
                rows["num_frames"] = [self._num_frames(number) for number in range(len(self))]
            self._rows = rows
        return self._rows

    def held_out(self, share: float) -> npt.NDArray[np.bool_]:
        """Whether each sample is held out."""
        return is_held_out(self.rows(), share)

    def info(self, index: int) -> SampleInfo:
        """Returns size, caption and fingerprint of a sample, from the index of its shard."""
        facts = self.reader.facts(index)
        fingerprint = facts.fingerprint
        if facts.num_frames > 1:
            # As clips in files: latents depend on which frames are taken.
            fingerprint = content_fingerprint(f"{fingerprint} {self._choice.fps}".encode())
        return SampleInfo(
            fingerprint=fingerprint,
            width_px=facts.width_px,
            height_px=facts.height_px,
            caption=with_trigger(self._choice.trigger, facts.caption),
            num_frames=self._frames_taken(facts, index),
        )

    def pixels(self, index: int) -> Pixels:
        """Returns the decoded image, or the first frame."""
        return self.frames(index, 1)[0]

    def frames(self, index: int, num_frames: int) -> Sequence[Pixels]:
        """Returns the first frames of a clip; an image is its only one."""
        sample = self.reader.sample(index)
        suffix, data = self._main(index, sample)
        facts, name = sample.facts, self.name(index)
        if f".{suffix}".endswith(videos.SUFFIXES):
            videos.require_decoder()
            with _as_file(data) as file:
                frames = videos.read_frames(file, name, num_frames, self._sampling(facts, index))
        else:
            frames = [images.decode(data, name)]
        if len(frames) < num_frames or frames[0].shape[:2] != (facts.height_px, facts.width_px):
            raise UserError(f"The sample {name} differs from its index. Pack the data again.")
        return frames

    def name(self, index: int) -> str:
        """Returns the shard and the key of a sample."""
        return self.reader.name(index)

    def repeats(self, index: int) -> int:
        """Returns 1: each sample is used once per epoch."""
        assert 0 <= index < len(self)
        return 1

    def notes(self) -> tuple[str, ...]:
        """Reports samples without a caption, if others have one, and a cache that is too small."""
        notes = []
        num_empty = len(self) - self.num_captions
        if 0 < num_empty < len(self):
            notes.append(f"{num_empty:,} of {len(self):,} samples have no caption: trained with an empty one.")
        shards = self.reader.manifest.shards
        if self.cache is not None and self.cache.max_bytes:
            two_windows = 2 * min(self.shards_per_window, len(shards)) * max(shard.num_bytes for shard in shards)
            needed = min(two_windows, self.reader.manifest.num_bytes)
            if self.cache.max_bytes < needed:
                notes.append(
                    f"The cache of shards is smaller than two windows of shards, so some samples are read by "
                    f"themselves. Set data.shard_cache_gib={needed / _GIB:.2g} or more, or data.shuffle_shards lower."
                )
        return tuple(notes)

    def fingerprint(self) -> str:
        """Returns the hash over all images and captions, and how they are read."""
        manifest, choice = self.reader.manifest.fingerprint, self._choice
        return content_fingerprint(f"{manifest} {choice.trigger or ''} {choice.fps or ''}".encode())

    def ahead(self, order: WindowOrder, micros_per_step: int, *, reads_samples: bool) -> ReadAhead | None:
        """Returns what fills the cache for the next steps; None for a set that needs no cache, or has none."""
        store = self.reader.store
        if not isinstance(store, CachedStore) or not store.cache.max_bytes:
            return None
        manifest = self.reader.manifest
        return ReadAhead(order, store, manifest, micros_per_step=micros_per_step, reads_samples=reads_samples)

    def _main(self, index: int, sample: IndexedSample) -> tuple[str, bytes]:
        suffix = next((suffix for suffix in sample.members if f".{suffix}".lower().endswith(_SUFFIXES)), None)
        if suffix is None:
            raise UserError(f"The sample {self.name(index)} has no image ({shown(', '.join(sample.members))}).")
        return suffix.lower(), self.reader.members(index, [suffix])[suffix]

    def _num_frames(self, index: int) -> int:
        return self._frames_taken(self.reader.facts(index), index)

    def _frames_taken(self, facts: SampleFacts, index: int) -> int:
        sampling = self._sampling(facts, index)
        return facts.num_frames if sampling is None else sampling.num_frames(_timing(facts))

    def _sampling(self, facts: SampleFacts, index: int) -> Sampling | None:
        if self._choice.fps is None or facts.num_frames == 1:
            return None
        return sampling_at(self._choice.fps, _timing(facts), self.name(index))


def _timing(facts: SampleFacts) -> Timing:
    span, span_per, tick, tick_per = facts.timing
    return Timing(num_frames=facts.num_frames, span_s=Fraction(span, span_per), tick_s=Fraction(tick, tick_per))


@contextmanager
def _as_file(data: bytes) -> Iterator[BinaryIO]:
    """Yields a file on the disk: the decoder looks at its descriptor."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        yield cast("BinaryIO", file)
