"""Shards that vanish, are cut short, stall or differ from their checksum: retried, named, never skipped."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("s3fs")

from foretune.choices.data import ShardsData
from foretune.core.errors import UserError
from foretune.data.shards import LostShard, Retry, open_set
from foretune.data.shards.cache import CachedStore
from foretune.data.shards.stores import Patience, open_store
from foretune.data.sources.shards import ShardSource, open_shard_source
from tests.data.shards.packed import sample, write_set
from tests.data.shards.servers import FailingServer, waits

_PATIENCE = Patience(connect_s=5.0, read_s=0.3)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FailingServer]:
    write_set(tmp_path / "set", map(sample, range(40)), per_shard=10)
    with FailingServer(tmp_path / "set") as running:
        yield running


def _source(server: FailingServer, tmp_path: Path, retry: Retry, cache_gib: float = 0.0) -> ShardSource:
    choice = ShardsData(
        kind="shards", path=server.address, cache_dir=str(tmp_path / "cache"), shard_cache_gib=cache_gib
    )
    return open_shard_source(choice, retry=retry, patience=_PATIENCE)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("404", "it is not there"),
        ("500", "500"),
        ("short", ""),
        ("garbage", "differs from its checksum"),
        ("stall", "[Tt]imeout"),
    ],
)
@pytest.mark.parametrize("cache_gib", [0.0, 1.0])
def test_fault_that_passes_is_retried_and_one_that_stays_is_named(
    fault: str, reason: str, cache_gib: float, server: FailingServer, tmp_path: Path
) -> None:
    noted, sleep = waits()
    source = _source(server, tmp_path, Retry(num_attempts=3, sleep=sleep), cache_gib)
    source.info(12)
    server.faults["000001.tar"] = [fault, fault]
    assert source.reader.members(12) == sample(12).members
    assert len(noted) == 2
    assert 0 < noted[0] < noted[1]
    server.faults["000002.tar"] = [fault] * 3
    source.info(22)
    with pytest.raises(LostShard, match=rf"000002\.tar failed in 3 attempts: .*{reason}"):
        source.reader.members(22)
    assert source.reader.members(22) == sample(22).members


@pytest.mark.parametrize("name", ["000001.index", "shards.json", "samples.bin"])
def test_index_and_manifest_are_retried_too(name: str, server: FailingServer, tmp_path: Path) -> None:
    noted, sleep = waits()
    server.faults[name] = ["500", "garbage", "short"] if name != "shards.json" else ["500", "short"]
    source = _source(server, tmp_path, Retry(sleep=sleep))
    assert source.info(12).caption == "caption 12"
    assert len(source.rows()) == 40
    assert len(noted) == (3 if name != "shards.json" else 2)


def test_shard_in_the_cache_that_is_damaged_is_read_again(server: FailingServer, tmp_path: Path) -> None:
    noted, sleep = waits()
    source = _source(server, tmp_path, Retry(sleep=sleep), cache_gib=1.0)
    assert source.cache is not None
    store = source.reader.store
    assert isinstance(store, CachedStore)
    entry = source.reader.manifest.shards[0]
    assert source.cache.fetch(store.store, store.file(entry.name))
    num_before = len(server.requests)
    assert source.reader.members(3) == sample(3).members
    assert [name for name, _ in server.requests[num_before:]] == ["000000.index"]
    cached = source.cache.path(entry.checksum)
    cached.write_bytes(bytes(len(cached.read_bytes())))
    assert source.reader.members(3) == sample(3).members
    assert len(noted) == 1


def test_download_whose_checksum_differs_is_retried_and_never_kept(server: FailingServer, tmp_path: Path) -> None:
    noted, sleep = waits()
    source = _source(server, tmp_path, Retry(num_attempts=3, sleep=sleep), cache_gib=1.0)
    store = source.reader.store
    assert source.cache is not None
    assert isinstance(store, CachedStore)
    file = store.file("000003.tar")
    server.faults["000003.tar"] = ["garbage"] * 3
    with pytest.raises(LostShard, match=r"000003\.tar failed in 3 attempts: its content differs from its checksum"):
        source.cache.fetch(store.store, file)
    assert source.cache.held_bytes() == 0
    server.faults["000003.tar"] = ["short", "garbage"]
    assert source.cache.fetch(store.store, file)
    assert source.cache.held_bytes() == file.num_bytes
    assert len(noted) == 4


def test_waits_grow_and_are_bounded() -> None:
    noted, sleep = waits()
    from foretune.data.shards import ShardFault

    def attempt() -> None:
        raise ShardFault("gone")

    with pytest.raises(LostShard, match="The shard x failed in 5 attempts: gone"):
        Retry(sleep=sleep).call("The shard x", attempt)
    assert len(noted) == 4
    assert all(0.5 * 3**n / 2 <= wait <= 0.5 * 3**n for n, wait in enumerate(noted))


def test_copy_of_a_source_opens_its_own_connections(server: FailingServer, tmp_path: Path) -> None:
    source = _source(server, tmp_path, Retry())
    assert source.info(1).caption == "caption 1"
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - as a loader process gets it
    assert copy.reader.members(1) == sample(1).members


def test_server_without_ranges_is_read_as_well(server: FailingServer, tmp_path: Path) -> None:
    reader = open_set(server.address)
    whole = (tmp_path / "set" / "000000.tar").read_bytes()
    store = reader.store
    assert store.read("000000.tar", 512, 100, len(whole)) == whole[512:612]
    assert server.requests[-1] == ("000000.tar", "bytes=512-611")


def test_reading_through_a_shard_downloads_it_once(server: FailingServer, tmp_path: Path) -> None:
    source = _source(server, tmp_path, Retry(), cache_gib=1.0)
    for number in range(40):
        assert source.reader.members(number) == sample(number).members
    per_shard = [sum(name == f"00000{shard}.tar" for name, _ in server.requests) for shard in range(4)]
    assert per_shard == [8, 8, 8, 8], "seven samples by themselves, then the whole shard"


def test_address_that_can_only_be_read_is_not_written_to(server: FailingServer) -> None:
    import foretune

    with pytest.raises(UserError, match="can only be read"):
        foretune.pack_data("pictures", server.address)
    assert open_store("https://host/set").where("x") == "https://host/set/x"
