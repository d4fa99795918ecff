"""Shards as they are written: what is in the tars, what survives a writer that was killed, what is refused."""

import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.data.shards import ShardLimits, ShardWriter, finished_shards, open_set, open_store
from foretune.data.shards.index import ShardIndex
from foretune.data.shards.layout import MANIFEST, Manifest
from foretune.data.shards.retrying import LostShard, ShardFault
from foretune.data.shards.table import is_held_out
from tests.data.shards.packed import AT_ONCE, sample, write_set


def test_each_sample_is_read_back_by_its_number(tmp_path: Path) -> None:
    manifest = write_set(tmp_path, map(sample, range(25)), per_shard=10)
    assert [shard.num_samples for shard in manifest.shards] == [10, 10, 5]
    reader = pickle.loads(pickle.dumps(open_set(str(tmp_path))))  # noqa: S301 - as a loader process gets it
    for number in (0, 9, 10, 24):
        assert reader.members(number) == sample(number).members
        assert reader.sample(number).facts == sample(number).facts
    assert reader.members(3, ["txt"]) == {"txt": b"caption 3"}
    assert f"{tmp_path}/000001.tar, sample 000000010" == reader.name(10)


def test_tar_reads_what_was_written(tmp_path: Path) -> None:
    write_set(tmp_path, map(sample, range(3)), per_shard=10)
    with tarfile.open(tmp_path / "000000.tar") as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    assert contents == {f"{n:09d}.{suffix}": data for n in range(3) for suffix, data in sample(n).members.items()}


def test_shards_end_before_they_become_too_large(tmp_path: Path) -> None:
    limits = ShardLimits(max_bytes=8000)
    with ShardWriter(open_store(str(tmp_path)), limits=limits) as writer:
        for number in range(20):
            writer.add(sample(number))
    assert len(writer.entries) > 2
    assert all(entry.num_bytes <= 8000 + 1024 for entry in writer.entries)
    assert sum(entry.num_samples for entry in writer.entries) == 20


def test_writer_that_fails_leaves_whole_shards_only(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    writer = ShardWriter(store, prefix="a-", limits=ShardLimits(max_samples=10))

    def write() -> None:
        with writer:
            for each in [*map(sample, range(25)), replace(sample(25), key="../25")]:
                writer.add(each)

    with pytest.raises(AssertionError, match="is not a key"):
        write()
    # A tar whose index is missing was not finished either.
    (tmp_path / "a-000002.tar").write_bytes(b"cut short")
    assert list(finished_shards(store, prefix="a-")) == writer.entries
    assert [entry.name for entry in writer.entries] == ["a-000000.tar", "a-000001.tar"]
    with pytest.raises(UserError, match=r"is not a packed set: it has no shards\.json"):
        open_set(str(tmp_path))


def test_equal_samples_make_equal_sets(tmp_path: Path) -> None:
    one, other = (write_set(tmp_path / name, map(sample, range(12)), per_shard=5) for name in "ab")
    assert one == other
    assert one.fingerprint == other.fingerprint
    third = write_set(tmp_path / "c", map(sample, range(11)), per_shard=5)
    assert third.fingerprint != one.fingerprint


def test_captions_change_the_fingerprint(tmp_path: Path) -> None:
    plain = sample(1)
    other = replace(plain, facts=replace(plain.facts, caption="another"))
    assert write_set(tmp_path / "a", [plain], 5).fingerprint != write_set(tmp_path / "b", [other], 5).fingerprint


def test_damaged_sample_is_named(tmp_path: Path) -> None:
    write_set(tmp_path, map(sample, range(5)), per_shard=10)
    tar = tmp_path / "000000.tar"
    data = bytearray(tar.read_bytes())
    data[512 + 20] ^= 1
    tar.write_bytes(data)
    reader = open_set(str(tmp_path), retry=AT_ONCE)
    assert reader.members(1) == sample(1).members
    with pytest.raises(LostShard, match=r"000000\.tar failed in 5 attempts: sample 000000000 differs"):
        reader.members(0)


def test_truncated_shard_is_named(tmp_path: Path) -> None:
    write_set(tmp_path, map(sample, range(5)), per_shard=10)
    tar = tmp_path / "000000.tar"
    tar.write_bytes(tar.read_bytes()[:-1])
    with pytest.raises(LostShard, match=r"000000\.tar failed in 5 attempts: it has [\d,]+ bytes where the index says"):
        open_set(str(tmp_path), retry=AT_ONCE).members(0)


@pytest.mark.parametrize("name", ["../000000.tar", "a/b.tar", ".hidden.tar", "000000.zip", "", 7, "a..tar"])
def test_manifest_that_leads_elsewhere_is_refused(tmp_path: Path, name: object) -> None:
    write_set(tmp_path, map(sample, range(3)), per_shard=10)
    text = (tmp_path / MANIFEST).read_text()
    shown = f'"{name}"' if isinstance(name, str) else str(name)
    (tmp_path / MANIFEST).write_text(text.replace('"000000.tar"', shown))
    with pytest.raises(UserError, match="is not the manifest of a packed set"):
        open_set(str(tmp_path))


def test_index_with_places_outside_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, map(sample, range(3)), per_shard=10)
    data = (tmp_path / "000000.index").read_bytes()
    assert len(ShardIndex.from_bytes(data)) == 3
    for place in range(0, len(data), 5):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        try:
            index = ShardIndex.from_bytes(bytes(changed))
            for number in range(len(index)):
                assert len(index[number].members) <= 6
        except ShardFault:
            continue


def test_manifest_survives_its_own_format() -> None:
    manifest = Manifest(shards=(), table_checksum="0" * 40, holds="clips")
    assert Manifest.from_json(manifest.to_json(), "set") == manifest


def test_table_holds_out_what_the_split_of_a_folder_does(tmp_path: Path) -> None:
    from foretune.core.draws import uniform
    from foretune.data.split import fingerprint_number

    write_set(tmp_path, map(sample, range(60)), per_shard=25)
    reader = open_set(str(tmp_path))
    held_out = is_held_out(reader.table(), 0.2)
    places = [uniform(0, "split", fingerprint_number(sample(n).facts.fingerprint)) for n in range(60)]
    assert held_out.tolist() == [place < 0.2 for place in places]
    assert 0 < held_out.sum() < 60
    assert is_held_out(reader.table(), 1e-9).sum() == 1
    assert not is_held_out(reader.table(), 0).any()
