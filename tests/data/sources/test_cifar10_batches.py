"""The python version of CIFAR-10 is read without unpickling it, and a pickle that would do something is refused."""

import builtins
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretune.choices.data import Cifar10Data
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket
from foretune.data.sources import Source, open_source
from foretune.data.sources.plain_pickle import NotPlain, parse_plain_pickle

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)


def as_published(images: np.ndarray[Any, np.dtype[np.uint8]], labels: list[int]) -> bytes:
    """A batch as Python 2 and its numpy wrote it, operation by operation."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = (
        b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNN" + 2 * number(-1) + b"K\x00tb"
    )
    content = b"T" + struct.pack("<I", images.size) + images.tobytes()
    state = b"(K\x01" + number(len(images)) + number(3072) + b"\x86" + dtype + b"\x89" + content + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR" + state
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + listed
        + text(b"data") + array + text(b"filenames") + b"](" + text(b"a.png") + b"eu."
    )  # fmt: skip


def opened(path: Path) -> Source:
    return open_source(Cifar10Data(kind="cifar10", path=str(path)), largest=Bucket(32, 32))


def write(folder: Path, content: bytes, name: str = "data_batch_1") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_bytes(content)
    return folder


def test_the_published_batches_are_read(tmp_path: Path) -> None:
    content = as_published(IMAGES[:2], [3, 9])
    # The control: it is what numpy itself makes of the file.
    assert (pickle.loads(content, encoding="bytes")[b"data"] == IMAGES[:2]).all()  # noqa: S301
    folder = write(tmp_path / "cifar-10-batches-py", content)
    write(folder, as_published(IMAGES[2:], [0, 1]), "data_batch_2")
    for path in (folder, tmp_path):
        source = opened(path)
        assert [source.info(index).caption for index in range(len(source))] == [
            "a photo of a cat", "a photo of a truck", "a photo of a airplane", "a photo of a automobile"
        ]  # fmt: skip
        for index, image in enumerate(IMAGES):
            assert (source.pixels(index) == image.reshape(3, 32, 32).transpose(1, 2, 0)).all()


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_batches_that_were_saved_again_are_read(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({b"data": IMAGES, b"labels": [1, 2, 3, 4]}, protocol=protocol)
    assert len(opened(write(tmp_path / "b", content))) == 4


class Hostile:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (os.system, "touch {}"),
        (builtins.eval, "open({!r}, 'w')"),
        (builtins.exec, "open({!r}, 'w')"),
        (os.mkdir, "{}"),
        (builtins.getattr, "{}"),
    ],
)
def test_a_pickle_that_would_run_code_is_refused_and_runs_none(
    tmp_path: Path, function: Any, argument: str, protocol: int
) -> None:
    mark = tmp_path / "ran"
    content = pickle.dumps({b"data": Hostile(function, argument.format(str(mark))), b"labels": []}, protocol=protocol)
    with pytest.raises(NotPlain, match=r"data_batch_1 is not read: it (names|uses)"):
        opened(write(tmp_path / "b", content))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}",
        b"\x80\x02R.",
        b"\x80\x02u.",
        b"cnumpy\ndtype\n)R.",
        b"cnumpy\nndarray\n)R.",
        b"cnumpy\nload\n(U\x01xtR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\ntR.",
        b"\x80\x02}}b.",
        b"i" + b"os\nsystem\n.",
        b"\x80\x02h\x05.",
        b"\x82\x01.",
    ],
)
def test_damaged_and_strange_pickles_are_refused_with_the_file_s_name(tmp_path: Path, content: bytes) -> None:
    file = write(tmp_path, content) / "data_batch_1"
    with pytest.raises(NotPlain, match="data_batch_1 is not read: it "):
        parse_plain_pickle(file.read_bytes(), file)


@pytest.mark.parametrize(
    "content",
    [
        {b"data": IMAGES, b"labels": [1, 2, 3]},
        {b"data": IMAGES, b"labels": [1, 2, 3, 10]},
        {b"data": IMAGES[:, :100], b"labels": [1, 2, 3, 4]},
        {b"data": [1], b"labels": [1]},
        [1, 2],
    ],
)
def test_other_content_is_no_batch(tmp_path: Path, content: object) -> None:
    with pytest.raises(UserError, match="data_batch_1 is not a CIFAR-10 batch"):
        opened(write(tmp_path / "b", pickle.dumps(content, protocol=4)))
