"""Random access to the samples of a packed set: one range request per sample, or none where its shard is cached."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.data.shards.index import IndexedSample, SampleFacts, ShardIndex
from foretune.data.shards.layout import MANIFEST, MOST_MANIFEST_BYTES, TABLE, Manifest, digest
from foretune.data.shards.retrying import Retry, ShardFault
from foretune.data.shards.stores import Patience, ShardStore, open_store
from foretune.data.shards.table import Rows, read_table
from foretune.data.shards.writer import read_index
from foretune.data.sources.fingerprint import content_fingerprint

_MOST_INDEXES = 64


class ShardReader:
    """The samples of a set, numbered from 0 through all of its shards. Picklable.

    The content of a sample is verified by its fingerprint each time it is read, so that damage is noticed in the sample
    that has it.
    """

    def __init__(
        self,
        store: ShardStore,
        manifest: Manifest,
        *,
        retry: Retry = Retry(),  # noqa: B008 - frozen
        max_indexes: int = _MOST_INDEXES,
        verifies: bool = True,
    ) -> None:
        """`max_indexes`: how many shards' indexes are in memory at most.

        `verifies`: whether a sample's fingerprint is that of its main member; if not, members verify themselves.
        """
        self.store, self.manifest, self.retry = store, manifest, retry
        self._max_indexes = max_indexes
        self._verifies = verifies
        self._ends = list(accumulate(shard.num_samples for shard in manifest.shards))
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def place(self, number: int) -> tuple[int, int]:
        """Returns a sample's shard, and its place in it."""
        shard = bisect_right(self._ends, number)
        return shard, number - (self._ends[shard - 1] if shard else 0)

    @property
    def ends(self) -> Sequence[int]:
        """The end of each shard's samples."""
        return self._ends

    def index(self, shard: int) -> ShardIndex:
        """Returns a shard's index; the most recent ones are in memory."""
        known = self._indexes.get(shard)
        if known is None:
            known = read_index(self.store, self.retry, self.manifest.shards[shard])
            self._indexes[shard] = known
            if len(self._indexes) > self._max_indexes:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(shard)
        return known

    def sample(self, number: int) -> IndexedSample:
        """Returns what is known about a sample."""
        shard, place = self.place(number)
        return self.index(shard)[place]

    def facts(self, number: int) -> SampleFacts:
        """Returns the same without its members."""
        shard, place = self.place(number)
        return self.index(shard).facts(place)

    def name(self, number: int) -> str:
        """Returns what a message calls a sample: `s3://bucket/set/000003.tar, sample 000000123`."""
        shard, place = self.place(number)
        return f"{self.store.where(self.manifest.shards[shard].name)}, sample {shown(self.index(shard)[place].key)}"

    def members(self, number: int, suffixes: Sequence[str] | None = None) -> dict[str, bytes]:
        """Returns the contents of a sample's members by suffix, with one request for all of them.

        `suffixes` limits them; those that the sample does not have are left out.
        """
        shard, place = self.place(number)
        entry, sample = self.manifest.shards[shard], self.index(shard)[place]
        ranges = {suffix: found for suffix, found in sample.members.items() if suffixes is None or suffix in suffixes}
        if not ranges:
            return {}
        main = next(iter(sample.members))
        start = min(found.start for found in ranges.values())
        end = max(found.start + found.num_bytes for found in ranges.values())
        if end > entry.num_bytes:
            raise UserError(f"The index of {self.name(number)} leads past the end of its shard. Pack the data again.")

        def verified(data: bytes) -> dict[str, bytes]:
            parts = {suffix: data[at.start - start : at.start - start + at.num_bytes] for suffix, at in ranges.items()}
            if self._verifies and main in parts and content_fingerprint(parts[main]) != sample.facts.fingerprint:
                self.store.forget(entry.name)
                raise ShardFault(f"sample {shown(sample.key)} differs from its checksum")
            return parts

        def attempt() -> dict[str, bytes]:
            return verified(self.store.read(entry.name, start, end - start, entry.num_bytes))

        return self.retry.call(f"The shard {self.store.where(entry.name)}", attempt)

    def table(self) -> Rows:
        """Returns the rows of all samples (`shards.table`), verified by the manifest's checksum."""

        def attempt() -> Rows:
            data = self.store.read(TABLE, 0, self.manifest.table_bytes, self.manifest.table_bytes)
            if digest(data) != self.manifest.table_checksum:
                raise ShardFault("its content differs from its checksum")
            return read_table(data, len(self))

        return self.retry.call(f"The file {self.store.where(TABLE)}", attempt)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, without indexes: it reads those that it needs."""
        return {**self.__dict__, "_indexes": OrderedDict()}


def open_set(
    place: str,
    *,
    retry: Retry = Retry(),  # noqa: B008 - frozen
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> ShardReader:
    """Opens the set at a folder or an address: reads its manifest, and nothing else."""
    store = open_store(place, patience)
    return ShardReader(store, read_manifest(store, retry), retry=retry)


def read_manifest(store: ShardStore, retry: Retry = Retry()) -> Manifest:  # noqa: B008 - frozen
    """Returns the manifest of the set in a store."""
    where = store.where(MANIFEST)
    data = retry.call(f"The file {where}", lambda: store.read_small(MANIFEST, MOST_MANIFEST_BYTES))
    if data is None:
        raise UserError(
            f"{store.where()} is not a packed set: it has no {MANIFEST}. To make one: foretune data pack SOURCE "
            f"OUTPUT; from tars that other programs wrote: foretune data index FOLDER"
        )
    return Manifest.from_json(data, where)
