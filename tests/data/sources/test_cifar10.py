"""The CIFAR-10 folder layout, with and without labels."""

from pathlib import Path

import pytest

from foretune.choices.data import Cifar10Data, FolderData
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket
from foretune.data.sources import Source, open_source
from tests.data.made import save_image


def _opened(tmp_path: Path, path: Path) -> Source:
    choice = Cifar10Data(kind="cifar10", path=str(path), cache_dir=str(tmp_path / "cache"))
    return open_source(choice, largest=Bucket(32, 32))


def _made(tmp_path: Path) -> Path:
    for number in (1, 2, 10, 11):
        save_image(tmp_path / "cifar-10" / "train" / f"{number}.png", size_px=(32, 32), colour=(number, 0, 0))
    save_image(tmp_path / "cifar-10" / "train" / "sheet.png")
    return tmp_path / "cifar-10"


def test_images_come_in_the_order_of_their_numbers(tmp_path: Path):
    root = _made(tmp_path)
    for path in (root, tmp_path):
        source = _opened(tmp_path, path)
        assert [source.pixels(index)[0, 0, 0] for index in range(len(source))] == [1, 2, 10, 11]
        assert source.info(0).caption == ""


def test_labels_become_captions(tmp_path: Path):
    root = _made(tmp_path)
    (root / "trainLabels.csv").write_text("id,label\n11,truck\n10,frog\n2,cat\n1,dog\n")
    source = _opened(tmp_path, root)
    assert [source.info(index).caption for index in range(4)] == [
        f"a photo of a {label}" for label in ("dog", "cat", "frog", "truck")
    ]


@pytest.mark.parametrize("content", ["id,name\n1,dog\n", "id,label\none,dog\n", "id,label\n1\n"])
def test_a_wrong_labels_file_says_what_it_must_have(tmp_path: Path, content: str):
    root = _made(tmp_path)
    (root / "trainLabels.csv").write_text(content)
    with pytest.raises(UserError, match="columns id and label"):
        _opened(tmp_path, root)


def test_an_image_without_a_label_is_named(tmp_path: Path):
    root = _made(tmp_path)
    (root / "trainLabels.csv").write_text("id,label\n1,dog\n")
    with pytest.raises(UserError, match=r"no label for 2\.png"):
        _opened(tmp_path, root)


def test_another_layout_is_refused_with_the_kind_that_reads_it(tmp_path: Path):
    save_image(tmp_path / "photos" / "1.png")
    with pytest.raises(UserError, match=r"not in the CIFAR-10 layout.*data\.kind=folder"):
        _opened(tmp_path, tmp_path / "photos")
    (tmp_path / "photos" / "train").mkdir()
    with pytest.raises(UserError, match=r"no images named 1\.png"):
        _opened(tmp_path, tmp_path / "photos")


def test_an_archive_is_answered_with_the_command_that_unpacks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10").mkdir()
    (tmp_path / "cifar-10" / "train.7z").touch()
    without_7z = r"pip install py7zr, then python -m py7zr x cifar-10/train\.7z cifar-10"
    command = rf"Run: 7z x cifar-10/train\.7z -ocifar-10 \(without 7z: {without_7z}\) and set data\.path=cifar-10$"
    with pytest.raises(UserError, match=r"cifar-10/train\.7z is an archive, not a folder\. " + command):
        _opened(tmp_path, Path("cifar-10/train.7z"))
    with pytest.raises(UserError, match=r"not in the CIFAR-10 layout.*cifar-10/train\.7z is not unpacked\. " + command):
        _opened(tmp_path, Path("cifar-10"))
    (tmp_path / "cifar-10" / "train").mkdir()
    with pytest.raises(UserError, match=r"no images named 1\.png.*train\.7z is not unpacked\."):
        _opened(tmp_path, Path("cifar-10"))
    folder = FolderData(kind="folder", path="cifar-10", cache_dir=str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"cifar-10 has no images\. cifar-10/train\.7z is not unpacked\. " + command):
        open_source(folder, largest=Bucket(32, 32))
    (tmp_path / "photos of mine.tar.gz").touch()
    imported = (
        r"Run: foretune data import 'photos of mine\.tar\.gz' --output 'photos of mine' and set data\.path=photos"
    )
    with pytest.raises(UserError, match=r"is an archive, not a folder\. " + imported):
        open_source(folder.model_copy(update={"path": "photos of mine.tar.gz"}), largest=Bucket(32, 32))
