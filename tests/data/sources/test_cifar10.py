"""The CIFAR-10 folder layout, with and without labels."""

from pathlib import Path

import pytest

from foretune.choices.data import Cifar10Data
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
