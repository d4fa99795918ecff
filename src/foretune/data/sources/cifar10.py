"""CIFAR-10 as images (`cifar-10/train/1.png` etc., optionally `trainLabels.csv` beside `train`) or Python batches."""

import csv
import io
import os
from pathlib import Path

from foretune.choices.data import Cifar10Data
from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.data.buckets import Bucket
from foretune.data.sources.base import Source
from foretune.data.sources.cifar10_batches import BATCHES_FOLDER, Cifar10Batches, has_batches
from foretune.data.sources.files import FileSample, FileSource, existing_folder, read_data_text, require_inside
from foretune.data.sources.packed import packed_note

FOLDER = "cifar-10"
LABELS = "trainLabels.csv"
_MOST_LABELS_BYTES = 64 * 2**20


def open_cifar10(choice: Cifar10Data, largest: Bucket) -> Source:  # noqa: ARG001
    """Opens the training images in the order of their numbers; a label makes the caption "a photo of a cat"."""
    folder = existing_folder(choice.path, "data.path")
    within = None if choice.follow_links else folder
    for batches in (folder, folder / BATCHES_FOLDER):
        if has_batches(batches):
            require_inside(batches, within)
            return Cifar10Batches(batches, within)
    root = _layout_root(folder, choice.path)
    require_inside(root / "train", within)
    images = sorted(
        (file for file in (root / "train").glob("*.png") if file.stem.isascii() and file.stem.isdigit()),
        key=lambda file: (int(file.stem), file.stem),
    )
    if not images:
        raise UserError(
            f"{root / 'train'} has no images named 1.png, 2.png and so on."
            f"{packed_note(root, root / 'train') or ' Set data.path to where they are.'}"
        )
    labels_file = root / LABELS
    labels = _labels(labels_file, within) if os.path.lexists(labels_file) else None
    samples = [FileSample(path=image, caption=_caption(image, labels, labels_file), within=within) for image in images]
    return FileSource(samples, memo_dir=Path(choice.cache_dir))


def _layout_root(folder: Path, path: str) -> Path:
    for root in (folder, folder / FOLDER):
        if (root / "train").is_dir():
            return root
    advice = "Set data.path to the folder that has them; for images in any other layout, data.kind=folder."
    raise UserError(
        f"{path} is not in the CIFAR-10 layout: none of {path}/train, {path}/{FOLDER}/train and "
        f"{path}/{BATCHES_FOLDER}/data_batch_1 is there.{packed_note(Path(path), Path(path, FOLDER)) or ' ' + advice}"
    )


def _labels(file: Path, within: Path | None) -> dict[int, str]:
    text = read_data_text(file, _MOST_LABELS_BYTES, within)
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        return {int(row["id"]): row["label"].strip() for row in rows}
    except (KeyError, ValueError, AttributeError, TypeError, csv.Error) as error:
        raise UserError(
            f"{shown(file)} must have the columns id and label, one row an image ({error}). Fix it, or remove it "
            "to train without captions."
        ) from error


def _caption(image: Path, labels: dict[int, str] | None, labels_file: Path) -> str:
    if labels is None:
        return ""
    label = labels.get(int(image.stem))
    if label is None:
        raise UserError(f"{labels_file} has no label for {image.name}. Add it, or remove the image.")
    return f"a photo of a {label}"
