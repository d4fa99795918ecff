"""Archives become folders of images and captions: what is taken, what is reported, and nothing by halves."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

import foretune
from foretune.choices.data import FolderData
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.data.archives import importing
from foretune.data.archives.limits import ImportLimits
from foretune.data.buckets import Bucket
from foretune.data.sources import open_source
from tests.proofs.hostile_archives import picture, tar_of, zip_of

_LONG = "a" * 120


def packed(tmp_path: Path, content: bytes, name: str = "a.archive") -> Path:
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar(tmp_path: Path, compression: str, form: int) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode=f"w:{compression}", format=form) as archive:  # type: ignore[call-overload]
        for name, content in (("./one.png", picture()), (f"{_LONG}/two.png", picture()), ("one.txt", b"a harbour")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    found = foretune.import_archive(packed(tmp_path, written.getvalue()), tmp_path / "output")
    assert files_in(tmp_path / "output") == [f"{_LONG}/two.png", "one.png", "one.txt"]
    assert (found.num_images, found.num_captions, found.skipped) == (2, 1, {})
    assert (tmp_path / "output" / "one.png").read_bytes() == picture()


def test_zstandard(tmp_path: Path) -> None:
    zstd = pytest.importorskip("backports.zstd")
    archive = packed(tmp_path, zstd.compress(tar_of()))
    assert foretune.import_archive(archive, tmp_path / "output").num_images == 1


def test_a_zip_becomes_a_source_of_training(tmp_path: Path) -> None:
    archive = packed(tmp_path, zip_of(("sub/b.png", picture()), ("good.txt", b"one"), ("sub/b.txt", b"two")))
    foretune.import_archive(archive, tmp_path / "output")
    choice = FolderData(kind="folder", path=str(tmp_path / "output"), cache_dir=str(tmp_path / "cache"))
    source = open_source(choice, largest=Bucket(64, 64))
    assert [source.info(index).caption for index in range(len(source))] == ["one", "two"]


def test_what_is_left_out_is_reported(tmp_path: Path) -> None:
    archive = packed(tmp_path, zip_of(*((f"../{number}.png", picture()) for number in range(5)), ("README.md", b"x")))
    found = foretune.import_archive(archive, tmp_path / "output")
    assert {reason: skipped.num for reason, skipped in found.skipped.items()} == {
        "has a path that leads out of the folder": 5,
        "is neither an image nor a caption": 1,
    }
    text = str(found)
    assert "Skipped 5 (has a path that leads out of the folder): ../0.png, ../1.png, ../2.png and 2 more" in text
    assert f"data.path={tmp_path / 'output'}" in text


def test_an_empty_folder_is_filled_and_others_are_left_alone(tmp_path: Path) -> None:
    archive = packed(tmp_path, zip_of())
    (tmp_path / "empty").mkdir()
    foretune.import_archive(archive, tmp_path / "empty")
    with pytest.raises(UserError, match="is not an empty folder"):
        foretune.import_archive(archive, tmp_path / "empty")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_an_interrupted_import_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    archive = packed(tmp_path, zip_of(("b.png", picture())))
    take = importing._Import.take

    def interrupted(self: Any, member: Any, reader: Any) -> None:
        take(self, member, reader)
        assert next(tmp_path.glob(".output.unfinished-*/good.png")).exists()
        raise failure

    monkeypatch.setattr(importing._Import, "take", interrupted)
    with pytest.raises(failure):
        foretune.import_archive(archive, tmp_path / "output")
    assert [path.name for path in tmp_path.iterdir()] == ["a.archive"]


def test_limits_are_of_the_whole(tmp_path: Path) -> None:
    archive = packed(tmp_path, zip_of(("b.png", picture()), ("c.png", picture())))
    with pytest.raises(UserError, match="unpacks to more than 100 B"):
        foretune.import_archive(archive, tmp_path / "output", most_bytes=100)
    with pytest.raises(UserError, match="has more than 2 files"):
        importing.import_members(archive, tmp_path / "output", ImportLimits(num_members=2))
    assert files_in(tmp_path) == ["a.archive"]


def test_progress_is_of_the_archive(tmp_path: Path) -> None:
    class Heard(Observer):
        def __init__(self) -> None:
            self.seen: list[tuple[int, int]] = []

        def preparing(self, what: str, done: int, total: int) -> None:
            self.seen.append((done, total))

    heard = Heard()
    members: list[tuple[str, bytes, dict[str, Any]]] = [
        (f"{number}.png", picture() + bytes(2**20), {}) for number in range(5)
    ]
    foretune.import_archive(packed(tmp_path, tar_of(*members)), tmp_path / "output", observer=heard)
    assert heard.seen[-1] == (5, 5)
    assert [done for done, _ in heard.seen] == sorted(done for done, _ in heard.seen)
