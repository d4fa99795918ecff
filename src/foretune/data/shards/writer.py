"""Writes samples into shards, one after the other: tar members, an index per shard, and at last the manifest."""

import hashlib
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from foretune.data.shards.index import IndexBuilder, MemberRange, SampleFacts, ShardIndex
from foretune.data.shards.layout import (
    DIGEST_BYTES,
    MANIFEST,
    TABLE,
    TAR_SUFFIX,
    Manifest,
    ShardEntry,
    digest,
    index_name,
)
from foretune.data.shards.retrying import Retry, ShardFault
from foretune.data.shards.stores import ShardStore
from foretune.data.shards.table import table_bytes, table_rows

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_SUFFIX = re.compile(r"[a-z0-9][a-z0-9._-]{0,15}")
_MOST_INDEX_BYTES = 2**32


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardLimits:
    """When a shard is closed and the next one begun."""

    max_bytes: int = 256 * 2**20
    max_samples: int = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSample:
    """A sample to write: its members by suffix without a dot, such as {"jpg": ..., "txt": ...}."""

    key: str
    """Unique in the set; letters, digits, - and _ only, because WebDataset ends a key at its first dot."""
    members: Mapping[str, bytes]
    """The first one is the sample's main member, of which `facts.fingerprint` is the hash."""
    facts: SampleFacts


class ShardWriter:
    """Writes samples into shards of a store; use it in a `with` block.

    A shard is complete when its index is there: tar and index are written in one step each, the tar first, so that a
    writer that is killed leaves whole shards only. `entries` lists those that are complete; `write_manifest` then makes
    them a set. A failure inside of the `with` block drops the unfinished shard.
    """

    def __init__(
        self,
        store: ShardStore,
        *,
        prefix: str = "",
        first_number: int = 0,
        limits: ShardLimits = ShardLimits(),  # noqa: B008 - frozen
        retry: Retry = Retry(),  # noqa: B008 - frozen
        on_shard: Callable[[ShardEntry], object] = lambda _entry: None,
    ) -> None:
        """`prefix` begins the names of the shards, so that several writers can share a store: `007-000000.tar`."""
        self._store, self._prefix, self._limits, self._retry = store, prefix, limits, retry
        self._number = first_number
        self._on_shard = on_shard
        self._shard: _OpenShard | None = None
        self.entries: list[ShardEntry] = []

    def add(self, sample: PackedSample) -> None:
        """Writes a sample; closes the shard before it if it would become too large."""
        num_bytes = sum(_padded(len(data)) + _BLOCK for data in sample.members.values())
        if self._shard is not None and self._shard.is_full(num_bytes, self._limits):
            self._close_shard()
        if self._shard is None:
            self._shard = _OpenShard()
        self._shard.add(sample)

    def _close_shard(self) -> None:
        assert self._shard is not None
        name = f"{self._prefix}{self._number:06d}{TAR_SUFFIX}"
        try:
            entry = self._shard.finish(self._store, name, self._retry)
        finally:
            self._shard.drop()
            self._shard = None
        self._number += 1
        self.entries.append(entry)
        self._on_shard(entry)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._shard is not None:
            self._close_shard()
        elif self._shard is not None:
            self._shard.drop()


class _OpenShard:
    """A shard on the local disk, until it is whole."""

    def __init__(self) -> None:
        descriptor, path = tempfile.mkstemp(prefix="foretune-shard-", suffix=TAR_SUFFIX)
        self._path = Path(path)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._index = IndexBuilder()
        self._num_bytes = 0

    def is_full(self, more_bytes: int, limits: ShardLimits) -> bool:
        return self._index.num_samples >= limits.max_samples or self._num_bytes + more_bytes > limits.max_bytes

    def add(self, sample: PackedSample) -> None:
        assert _KEY.fullmatch(sample.key), f"{sample.key!r} is not a key"
        assert sample.members, "a sample has at least one member"
        members = {}
        for suffix, data in sample.members.items():
            assert _SUFFIX.fullmatch(suffix), f"{suffix!r} is not a suffix"
            self._write(_header(f"{sample.key}.{suffix}", len(data)))
            members[suffix] = MemberRange(self._num_bytes, len(data))
            self._write(data)
            self._write(bytes(_padded(len(data)) - len(data)))
        self._index.add(sample.key, sample.facts, members)

    def finish(self, store: ShardStore, name: str, retry: Retry) -> ShardEntry:
        """Puts tar and index into the store."""
        self._write(_END)
        self._file.close()
        index = self._index.to_bytes(self._digest.hexdigest(), self._num_bytes)
        retry.call(f"Writing the shard {store.where(name)}", lambda: store.upload(self._path, name))
        return write_index(store, retry, name, index)

    def drop(self) -> None:
        self._file.close()
        with suppress(OSError):
            self._path.unlink()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._num_bytes += len(data)


def write_index(store: ShardStore, retry: Retry, shard_name: str, index: bytes) -> ShardEntry:
    """Writes a shard's index, which makes the shard complete; returns how a manifest lists it."""
    name = index_name(shard_name)
    retry.call(f"Writing the index {store.where(name)}", lambda: store.write(name, index))
    return _entry(shard_name, index)


def read_index(store: ShardStore, retry: Retry, entry: ShardEntry) -> ShardIndex:
    """Returns a shard's index, verified by the manifest's checksum."""

    def attempt() -> ShardIndex:
        data = store.read(entry.index_name, 0, entry.index_bytes, entry.index_bytes)
        if digest(data) != entry.index_checksum:
            store.forget(entry.index_name)
            raise ShardFault("its content differs from its checksum")
        index = ShardIndex.from_bytes(data)
        if len(index) != entry.num_samples:
            raise ShardFault(f"it lists {len(index):,} samples where the manifest says {entry.num_samples:,}")
        return index

    return retry.call(f"The index {store.where(entry.index_name)}", attempt)


def write_manifest(
    store: ShardStore,
    entries: Iterable[ShardEntry],
    *,
    holds: str = "images",
    retry: Retry = Retry(),  # noqa: B008 - frozen
) -> Manifest:
    """Makes shards a set that can be trained on: writes the table of all samples, and the manifest last."""
    shards = tuple(entries)
    table = table_bytes(table_rows(read_index(store, retry, entry)) for entry in shards)
    manifest = Manifest(shards=shards, holds=holds, table_checksum=digest(table), table_bytes=len(table))
    retry.call(f"Writing {store.where(TABLE)}", lambda: store.write(TABLE, table))
    retry.call(f"Writing {store.where(MANIFEST)}", lambda: store.write(MANIFEST, manifest.to_json()))
    return manifest


def finished_shards(store: ShardStore, *, prefix: str = "", retry: Retry = Retry()) -> Iterator[ShardEntry]:  # noqa: B008
    """Yields the complete shards of a writer that was interrupted, without a gap in their numbers."""
    for number in range(10**6):
        name = f"{prefix}{number:06d}{TAR_SUFFIX}"
        entry = retry.call(f"The shard {store.where(name)}", partial(_finished_shard, store, name))
        if entry is None:
            return
        yield entry


def _finished_shard(store: ShardStore, name: str) -> ShardEntry | None:
    index = store.read_small(index_name(name), _MOST_INDEX_BYTES)
    if index is None:
        return None
    entry = _entry(name, index)
    # Both were written in one step each, so a tar of this length is the one that was written.
    return entry if store.num_bytes(name) == entry.num_bytes else None


def _entry(shard_name: str, data: bytes) -> ShardEntry:
    index = ShardIndex.from_bytes(data)
    return ShardEntry(
        name=shard_name,
        num_samples=len(index),
        num_bytes=index.tar_bytes,
        checksum=index.tar_checksum,
        index_bytes=len(data),
        index_checksum=digest(data),
        content=index.content,
        num_captions=index.num_captions,
    )


def blocks(store: ShardStore, name: str, num_bytes: int, block_bytes: int = 16 * 2**20) -> Iterator[bytes]:
    """Yields a file in parts, each read once."""
    for start in range(0, num_bytes, block_bytes):
        yield store.read(name, start, min(block_bytes, num_bytes - start), num_bytes)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK


def _header(name: str, num_bytes: int) -> bytes:
    """Returns a ustar header; owner and time are the same everywhere, so that equal samples make equal shards."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = num_bytes, 0o644, 0
    return info.tobuf(tarfile.GNU_FORMAT)
