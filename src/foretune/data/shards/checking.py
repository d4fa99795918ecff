"""Verifies a packed set: every file is there, whole, and what its checksum says."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from foretune.core.units import bytes_text, counted_text
from foretune.data.shards.layout import DIGEST_BYTES, ShardEntry
from foretune.data.shards.reader import ShardReader
from foretune.data.shards.retrying import LostShard, ShardFault
from foretune.data.shards.writer import blocks


@dataclass
class CheckedSet:
    """What a check found."""

    where: str
    num_samples: int
    num_shards: int
    num_bytes: int = 0
    """Of what was read."""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """What `foretune data check` prints."""
        what = f"{counted_text(self.num_samples, 'samples')}, {counted_text(self.num_shards, 'shards')}"
        if not self.faults:
            return f"{self.where}: {what}, {bytes_text(self.num_bytes)} read, all checksums match"
        lines = [f"{self.where}: {what}, {counted_text(len(self.faults), 'faults')}:"]
        return "\n".join(lines + [f"  {fault}" for fault in self.faults])


def check(reader: ShardReader, on_progress: Callable[[int, int], None] = lambda _done, _total: None) -> CheckedSet:
    """Reads all files of a set once. A fault does not end it: all are reported."""
    manifest = reader.manifest
    found = CheckedSet(reader.store.where(), manifest.num_samples, len(manifest.shards))
    _attempt(found, lambda: reader.table().nbytes)
    for number, entry in enumerate(manifest.shards):
        _attempt(found, lambda number=number, entry=entry: _index_bytes(reader, number, entry))  # type: ignore[misc]
        _attempt(found, lambda entry=entry: _tar_bytes(reader, entry))  # type: ignore[misc]
        on_progress(number + 1, len(manifest.shards))
    return found


def _attempt(found: CheckedSet, read: Callable[[], int]) -> None:
    try:
        found.num_bytes += read()
    except LostShard as fault:
        found.faults.append(str(fault).split(" Nothing was skipped.", maxsplit=1)[0])


def _index_bytes(reader: ShardReader, number: int, entry: ShardEntry) -> int:
    index = reader.index(number)
    if index.content != entry.content:
        raise LostShard(f"The index {reader.store.where(entry.index_name)} belongs to other samples.")
    return entry.index_bytes


def _tar_bytes(reader: ShardReader, entry: ShardEntry) -> int:
    def attempt() -> None:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for block in blocks(reader.store, entry.name, entry.num_bytes):
            digest.update(block)
        if digest.hexdigest() != entry.checksum:
            raise ShardFault("its content differs from its checksum")

    reader.retry.call(f"The shard {reader.store.where(entry.name)}", attempt)
    return entry.num_bytes
