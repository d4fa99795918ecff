"""Sets on a real S3 server: packed, checked, read, cached, read ahead; and no credentials anywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("moto")
pytest.importorskip("s3fs")

from foretune.choices.data import ShardsData
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket
from foretune.data.grouping import order_for
from foretune.data.loading import loader
from foretune.data.maker import BatchMaker
from foretune.data.shards import finished_shards, open_set, open_store
from foretune.data.shards.checking import check
from foretune.data.shards.layout import MANIFEST
from foretune.data.shards.stores import RemoteStore
from foretune.data.sources.shards import open_shard_source
from foretune.data.split import split
from tests.data.made import latent_shape
from tests.data.shards.packed import AT_ONCE, sample, write_set
from tests.data.shards.servers import BUCKET, s3_server

_SET = f"s3://{BUCKET}/folder/set"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A set on S3, and the same on the local disk."""
    local = tmp_path_factory.mktemp("shards") / "set"
    with s3_server():
        for place in (_SET, local):
            write_set(place, (sample(n, 16, 16) for n in range(48)), per_shard=8)
        yield local


def _maker(place: str, cache_dir: Path, rank: int = 0, world_size: int = 1, **given: Any) -> BatchMaker:
    choice = ShardsData(kind="shards", path=place, cache_dir=str(cache_dir), shuffle_shards=2, **given)
    source, buckets = open_shard_source(choice, retry=AT_ONCE), (Bucket(16, 16),)
    train, _ = split(source, 0)
    return BatchMaker(
        source=source,
        order=order_for(source, train, buckets, only_largest_bucket=False, samples_per_step=12, seed=3),
        buckets=buckets,
        choice=choice,
        seed=3,
        batch_size=12 // world_size,
        rank=rank,
        world_size=world_size,
        latent_shape=latent_shape,
    )


def test_set_on_s3_equals_the_set_on_disk(s3: Path) -> None:
    there, here = open_set(_SET), open_set(str(s3))
    assert there.manifest == here.manifest
    assert check(there).faults == []
    assert there.members(17) == here.members(17) == sample(17, 16, 16).members
    store = open_store(_SET)
    assert [entry.name for entry in finished_shards(store)] == [shard.name for shard in here.manifest.shards]
    assert store.names() == sorted(path.name for path in s3.iterdir())
    assert open_store(f"s3://{BUCKET}/nothing").read_small(MANIFEST, 100) is None
    assert open_store(f"s3://{BUCKET}/nothing").names() == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_from_disk_whatever_cache_and_workers(num_workers: int, s3: Path, tmp_path: Path) -> None:
    expected = [_maker(str(s3), tmp_path)[micro] for micro in range(6)]
    for cache_gib in (0.0, 1.0):
        maker = _maker(_SET, tmp_path / f"{cache_gib}", shard_cache_gib=cache_gib)
        for batch, wanted in zip(loader(maker, 0, 6, num_workers=num_workers), expected, strict=True):
            assert batch.indices == wanted.indices
            assert batch.images is not None
            assert wanted.images is not None
            assert torch.equal(batch.images, wanted.images)
        assert (maker.source.cache.held_bytes() > 0) == (cache_gib > 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_any_number_of_ranks_takes_each_sample_once(world_size: int, s3: Path, tmp_path: Path) -> None:
    makers = [_maker(str(s3), tmp_path, rank, world_size) for rank in range(world_size)]
    alone = _maker(str(s3), tmp_path)
    for step in range(4):
        indices = [index for maker in makers for index in maker[step].indices]
        assert indices == list(alone[step].indices), "the global order is the same"
    epoch = [index for step in range(4) for maker in makers for index in maker[step].indices]
    assert sorted(epoch) == list(range(48))


def test_cache_keeps_to_its_limit_and_to_what_is_needed(s3: Path, tmp_path: Path) -> None:
    shard = open_set(str(s3)).manifest.shards[0]
    limit = 3 * (shard.num_bytes + shard.index_bytes)
    maker = _maker(_SET, tmp_path, shard_cache_gib=limit / 2**30)
    assert any("smaller than two windows" in note for note in maker.source.notes())
    cache = maker.source.cache  # type: ignore[attr-defined]
    held = [cache.held_bytes() for _ in loader(maker, 0, 8)]
    assert max(held) <= limit
    assert max(held) > 0


def test_refused_access_names_where_credentials_come_from(s3: Path) -> None:
    class Refusing:
        def cat_file(self, *arguments: object, **options: object) -> bytes:
            raise PermissionError("Access Denied, secret_access_key=abcdefghijk")

    store = RemoteStore(_SET)
    store._files = lambda: (Refusing(), (OSError,))  # type: ignore[method-assign]
    with pytest.raises(UserError, match="refuses access") as refused:
        store.read("000000.tar", 0, 1, 2)
    assert "AWS_PROFILE" in str(refused.value)
    assert "abcdefghijk" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("s3://key:secret@bucket/set", "user name or password"),
        ("https://host/set?X-Amz-Signature=abc", "query"),
        ("ftp://host/set", "ftp:// addresses are not read"),
        ("simplecache::s3://bucket/set", "addresses are not read"),
        ("s3:///set", "names no host or bucket"),
    ],
)
def test_address_with_a_secret_or_of_another_kind_is_refused(path: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        ShardsData(kind="shards", path=path)
    errors = refused.value.errors(include_input=False)  # type: ignore[attr-defined]
    assert "secret@" not in str(errors)
