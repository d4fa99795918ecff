"""Packed sets: data past one disk, as WebDataset shards with an index, on a local disk, an HTTP server or S3.

To write a set (`writer`), with any number of workers, each with its own prefix:

    store = open_store("s3://bucket/set")                  # or a folder
    with ShardWriter(store, prefix="007-", on_shard=remember) as writer:
        writer.add(PackedSample(key="000000042", members={"safetensors": data}, facts=SampleFacts(fingerprint=...)))
    writer.entries                                         # the complete shards, also given to `on_shard` one by one

A worker that was killed left whole shards only: `finished_shards(store, prefix="007-")` yields them, each with the
number of its samples, and it continues with `ShardWriter(..., first_number=len(those))`. When all are done, one process
makes them a set: `write_manifest(store, entries_in_order, holds="latents")`. Until then nothing can read it as one.
The main member (the first of `members`) is what `facts.fingerprint` is the `content_fingerprint` of.

To read a set (`reader`): `reader = open_set(place)`; `len(reader)`, `reader.sample(number).facts`,
`reader.members(number)` by suffix, verified, with one range request.
"""

from foretune.data.shards.index import IndexedSample, SampleFacts
from foretune.data.shards.layout import Manifest, ShardEntry
from foretune.data.shards.reader import ShardReader, open_set, read_manifest
from foretune.data.shards.retrying import LostShard, Retry, ShardFault
from foretune.data.shards.stores import open_store
from foretune.data.shards.writer import PackedSample, ShardLimits, ShardWriter, finished_shards, write_manifest

__all__ = [
    "IndexedSample",
    "LostShard",
    "Manifest",
    "PackedSample",
    "Retry",
    "SampleFacts",
    "ShardEntry",
    "ShardFault",
    "ShardLimits",
    "ShardReader",
    "ShardWriter",
    "finished_shards",
    "open_set",
    "open_store",
    "read_manifest",
    "write_manifest",
]
