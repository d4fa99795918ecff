"""Packing sources, continuing an interrupted pack, verifying sets, and indexing what other programs wrote."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import foretune
from foretune.core.errors import UserError
from foretune.data.shards import ShardLimits, open_set, open_store
from foretune.data.shards.layout import MANIFEST
from foretune.data.shards.packing import UNFINISHED, PackableSource, pack
from foretune.data.sources.files import FileSample, FileSource
from foretune.data.split import split
from tests.data.shards.packed import AT_ONCE, png


def _folder(folder: Path, num_images: int = 23) -> Path:
    folder.mkdir()
    for number in range(num_images):
        (folder / f"{number}.png").write_bytes(png(number, 8 + number % 3 * 4))
        (folder / f"{number}.txt").write_text(f"caption {number}")
    return folder


def _packable(folder: Path) -> PackableSource:
    paths = sorted(folder.glob("*.png"))
    return PackableSource(
        FileSource([FileSample(path=p, caption=p.with_suffix(".txt").read_text(), within=folder) for p in paths])
    )


def test_packed_folder_has_the_same_samples_and_the_same_held_out_ones(tmp_path: Path) -> None:
    from foretune.choices.data import FolderData, ShardsData
    from foretune.data.buckets import Bucket
    from foretune.data.sources import open_source

    folder = _folder(tmp_path / "pictures")
    packed = foretune.pack_data(folder, tmp_path / "set", shard_samples=10, cache_dir=tmp_path / "cache")
    assert (packed.num_samples, packed.num_captions, packed.num_shards) == (23, 23, 3)
    assert not (tmp_path / "set" / UNFINISHED).exists()
    common: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "resolution": 8}
    size = Bucket(8, 8)
    files = open_source(FolderData(kind="folder", path=str(folder), **common), largest=size)
    shards = open_source(ShardsData(kind="shards", path=str(tmp_path / "set"), **common), largest=size)
    infos = [{source.info(i).fingerprint: source.info(i) for i in range(23)} for source in (files, shards)]
    assert infos[0] == infos[1]
    held_out = [{s.info(i).fingerprint for i in split(s, 0.2)[1]} for s in (files, shards)]
    assert held_out[0] == held_out[1] != set()
    by_content = {files.info(i).fingerprint: files.pixels(i) for i in range(23)}
    assert all((shards.pixels(i) == by_content[shards.info(i).fingerprint]).all() for i in range(23))
    first_shard = [shards.info(i).caption for i in range(10)]
    assert first_shard != sorted(first_shard), "samples are shuffled once"
    found = foretune.check_data(tmp_path / "set")
    assert found.faults == []
    assert found.num_bytes == packed.num_bytes + packed.num_index_bytes


class _Stopping:
    """A source that fails at its Nth sample."""

    def __init__(self, source: PackableSource, after: int) -> None:
        self._source, self._left = source, after

    def __len__(self) -> int:
        return len(self._source)

    def sample(self, number: int):
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return self._source.sample(number)


def test_interrupted_pack_continues_with_the_same_result(tmp_path: Path) -> None:
    source, limits = _packable(_folder(tmp_path / "pictures")), ShardLimits(max_samples=6)
    whole = pack(source, open_store(str(tmp_path / "whole")), limits=limits, retry=AT_ONCE)
    store = open_store(str(tmp_path / "set"))
    with pytest.raises(KeyboardInterrupt):
        pack(_Stopping(source, 15), store, limits=limits, retry=AT_ONCE)
    assert not (tmp_path / "set" / MANIFEST).exists()
    continued = pack(source, store, limits=limits, retry=AT_ONCE)
    assert continued.num_shards_before == 2
    assert continued.fingerprint == whole.fingerprint
    for file in sorted((tmp_path / "whole").iterdir()):
        assert (tmp_path / "set" / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(UserError, match="is a packed set already"):
        pack(source, store, limits=limits, retry=AT_ONCE)


def test_interrupted_pack_is_not_continued_with_other_data(tmp_path: Path) -> None:
    folder, limits = _folder(tmp_path / "pictures"), ShardLimits(max_samples=6)
    store = open_store(str(tmp_path / "set"))
    with pytest.raises(KeyboardInterrupt):
        pack(_Stopping(_packable(folder), 15), store, limits=limits, retry=AT_ONCE)
    with pytest.raises(UserError, match="begun with other settings"):
        pack(_packable(folder), store, limits=ShardLimits(max_samples=5), retry=AT_ONCE)
    for text in folder.glob("*.txt"):
        text.write_text("another caption")
    with pytest.raises(UserError, match=r"000000\.tar holds other data than the source has now"):
        pack(_packable(folder), store, limits=limits, retry=AT_ONCE)


def test_folder_with_other_files_is_not_packed_into(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("x")
    with pytest.raises(UserError, match=r"is not empty \(mine\.txt"):
        pack(_packable(_folder(tmp_path / "pictures")), open_store(str(tmp_path / "set")), retry=AT_ONCE)


def test_broken_image_is_found_when_it_is_packed(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "pictures", 3)
    (folder / "1.png").write_bytes(png(1)[:-30])
    with pytest.raises(UserError, match=r"1\.png cannot be read"):
        pack(_packable(folder), open_store(str(tmp_path / "set")), retry=AT_ONCE)


def test_check_names_every_fault(tmp_path: Path) -> None:
    from foretune.data.shards.checking import check

    pack(
        _packable(_folder(tmp_path / "pictures")), open_store(str(tmp_path / "set")), limits=ShardLimits(max_samples=5)
    )
    damaged, missing, index = (tmp_path / "set" / name for name in ("000001.tar", "000002.tar", "000003.index"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    missing.unlink()
    index.write_bytes(index.read_bytes()[:-1] + b"x")
    found = check(open_set(str(tmp_path / "set"), retry=AT_ONCE))
    assert len(found.faults) == 3
    assert all(any(path.name in fault for fault in found.faults) for path in (damaged, missing, index))
    assert "3 faults" in str(found)


def _tar(path: Path, members: list[tuple[str, bytes]], links: tuple[str, ...] = ()) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)


def test_tars_as_img2dataset_writes_them_are_indexed_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "laion"
    for shard in range(2):
        members = []
        for number in range(shard * 4, shard * 4 + 4):
            key = f"{number:09d}"
            facts = json.dumps({"caption": f"from json {number}", "key": key, "status": "success"}).encode()
            members += [(f"{key}.jpg", png(number)), (f"{key}.json", facts)]
            members += [(f"{key}.txt", f"from text {number}".encode())] if number % 2 else []
        _tar(folder / f"{shard:05d}.tar", members)
    indexed = foretune.index_data(folder)
    assert (indexed.num_samples, indexed.num_captions, indexed.num_shards, indexed.skipped) == (8, 8, 2, {})
    reader = open_set(str(folder))
    assert [reader.sample(n).facts.caption for n in (0, 1, 6)] == ["from json 0", "from text 1", "from json 6"]
    assert reader.members(5)["jpg"] == png(5)
    assert foretune.check_data(folder).faults == []
    with pytest.raises(UserError, match="is a packed set already"):
        foretune.index_data(folder)


def test_hostile_members_are_skipped_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    long_name = "d/" * 60 + "deep.png"
    members = [
        ("../../outside.png", png(1)),
        ("/etc/0.png", png(2)),
        (long_name, png(3)),
        ("a\nb.png", png(4)),
        ("script.png", b"#!/bin/sh"),
        ("model.pkl", b"\x80\x04."),
        ("alone.txt", b"no image"),
    ]
    _tar(folder / "0.tar", members, links=("link.png",))
    indexed = foretune.index_data(folder)
    assert indexed.num_samples == 4
    assert indexed.skipped == {
        "links, devices and sparse files": 1,
        "named as images, and none": 1,
        "neither images nor captions": 1,
        "samples without an image": 1,
    }
    assert sorted(path.name for path in folder.iterdir()) == ["0.index", "0.tar", "samples.bin", "shards.json"]
    assert "\n" not in open_set(str(folder)).name(3)
    assert open_set(str(folder)).members(2)["png"] == png(3)


def test_tar_that_is_cut_short_or_has_a_key_twice_is_refused(tmp_path: Path) -> None:
    _tar(tmp_path / "a" / "0.tar", [("1.png", png(1)), ("2.png", png(2)), ("1.txt", b"again")])
    with pytest.raises(UserError, match="has the sample 1 twice"):
        foretune.index_data(tmp_path / "a")
    _tar(tmp_path / "b" / "0.tar", [("1.png", png(1))])
    data = (tmp_path / "b" / "0.tar").read_bytes()
    (tmp_path / "b" / "0.tar").write_bytes(data[:600])
    with pytest.raises(UserError, match="is damaged"):
        foretune.index_data(tmp_path / "b")


def test_webdataset_reads_our_shards_and_we_read_its(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    pack(
        _packable(_folder(tmp_path / "pictures", 7)),
        open_store(str(tmp_path / "set")),
        limits=ShardLimits(max_samples=4),
    )
    urls = [str(path) for path in sorted((tmp_path / "set").glob("*.tar"))]
    theirs = {s["__key__"]: s for s in webdataset.WebDataset(urls, shardshuffle=False)}
    reader = open_set(str(tmp_path / "set"))
    assert len(theirs) == 7
    for number in range(7):
        assert theirs[reader.sample(number).key]["png"] == reader.members(number)["png"]
        assert theirs[reader.sample(number).key]["txt"].decode() == reader.sample(number).facts.caption
    (tmp_path / "theirs").mkdir()
    with webdataset.TarWriter(str(tmp_path / "theirs" / "0.tar")) as writer:
        for number in range(5):
            writer.write({"__key__": f"sample{number}", "png": png(number), "json": {"caption": f"c {number}"}})
    assert foretune.index_data(tmp_path / "theirs").num_captions == 5
    assert open_set(str(tmp_path / "theirs")).members(3, ["png"]) == {"png": png(3)}
