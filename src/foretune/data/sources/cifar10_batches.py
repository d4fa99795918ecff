"""The Python version of CIFAR-10 as published: `cifar-10-batches-py/data_batch_1` to `data_batch_5`."""

import os
from pathlib import Path

import numpy as np

from foretune.core.errors import UserError
from foretune.core.input_files import read_opened
from foretune.data.images import Pixels
from foretune.data.sources.base import SampleInfo
from foretune.data.sources.files import open_data
from foretune.data.sources.fingerprint import content_fingerprint, listed_fingerprint
from foretune.data.sources.plain_pickle import MOST_BYTES, UInt8Array, parse_plain_pickle

BATCHES_FOLDER = "cifar-10-batches-py"
LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE_PX = 32
_IMAGE_BYTES = 3 * _SIDE_PX * _SIDE_PX


def has_batches(folder: Path) -> bool:
    """Whether this folder contains the training batches."""
    return os.path.lexists(folder / "data_batch_1")


class Cifar10Batches:
    """The training images in file order: 150 MB in memory for all 50,000."""

    is_generated = False

    def __init__(self, folder: Path, within: Path | None) -> None:
        """`within` is the folder that must contain the files, links resolved; None follows links anywhere."""
        files = sorted(file for file in folder.glob("data_batch_?") if file.name[-1].isdigit())
        parts = [_read_batch(file, within) for file in files]
        self._images = np.concatenate([images for images, _ in parts])
        self._labels = [label for _, labels in parts for label in labels]
        self._infos: list[SampleInfo | None] = [None] * len(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def info(self, index: int) -> SampleInfo:
        """Returns fingerprint and caption of an image; all have one size."""
        known = self._infos[index]
        if known is None:
            known = self._infos[index] = SampleInfo(
                fingerprint=content_fingerprint(self._images[index].tobytes()),
                width_px=_SIDE_PX,
                height_px=_SIDE_PX,
                caption=f"a photo of a {LABELS[self._labels[index]]}",
            )
        return known

    def pixels(self, index: int) -> Pixels:
        """Returns the image: the file stores all red values, then green, then blue."""
        planes = self._images[index].reshape(3, _SIDE_PX, _SIDE_PX)
        return np.ascontiguousarray(planes.transpose(1, 2, 0))

    def name(self, index: int) -> str:
        """Returns the number of the image, counted over all batch files from 0."""
        return f"image {index}"

    def repeats(self, index: int) -> int:
        """Returns 1: each image is used once per epoch."""
        assert 0 <= index < len(self)
        return 1

    def notes(self) -> tuple[str, ...]:
        """Returns nothing: every image has a label."""
        return ()

    def fingerprint(self) -> str:
        """Returns a hash over images and captions."""
        return listed_fingerprint(self)


def _read_batch(file: Path, within: Path | None) -> tuple[Pixels, list[int]]:
    with open_data(file, MOST_BYTES, within) as opened:
        content = parse_plain_pickle(read_opened(opened), file)
    named = {_text(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, UInt8Array) or not isinstance(labels, list):
        raise UserError(f"{file} is not a CIFAR-10 batch: it needs data and labels. Download it again.")
    are_labels = all(isinstance(label, int) and 0 <= label < len(LABELS) for label in labels)
    if data.shape != (len(labels), _IMAGE_BYTES) or len(data.content) != len(labels) * _IMAGE_BYTES or not are_labels:
        raise UserError(
            f"{file} is not a CIFAR-10 batch: it should have {_IMAGE_BYTES} bytes and a label from 0 to 9 for each "
            "image. Download it again."
        )
    return np.frombuffer(data.content, dtype=np.uint8).reshape(data.shape), labels


def _text(key: object) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
