"""A local Hugging Face dataset: a `save_to_disk` folder, or a folder of Parquet files.

It runs no loading script and downloads nothing; images are decoded with our own rules, not the dataset's.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foretune.choices.data import HuggingFaceData
from foretune.core.errors import MissingExtra, UnknownName, UserError
from foretune.core.input_files import parse_json, read_opened, shown
from foretune.data import images
from foretune.data.buckets import Bucket
from foretune.data.images import Pixels
from foretune.data.memo import Memo, Stamp, stamp
from foretune.data.sources.base import SampleInfo
from foretune.data.sources.captions import with_trigger
from foretune.data.sources.files import existing_folder, open_data, read_data_text
from foretune.data.sources.fingerprint import content_fingerprint, listed_fingerprint

_SAVED = "state.json"
_SAVED_SPLITS = "dataset_dict.json"
_INFO = "dataset_info.json"
_MOST_STATE_BYTES = 64 * 2**20
# Limit for one file of rows, which is memory-mapped or read in parts.
_MOST_ROWS_BYTES = 2**50


class HuggingFaceSource:
    """The rows of one split. `rows` is a `datasets.Dataset`, which reads rows from disk on demand."""

    is_generated = False

    def __init__(self, rows: Any, choice: HuggingFaceData) -> None:
        from datasets import Image

        self._name = f"{choice.path} ({choice.split})"
        self._trigger = choice.trigger
        self._where = choice.where
        self._within = None if choice.follow_links else Path(choice.path).expanduser().absolute()
        self._image_column = _column(rows, choice.image_column, "data.image_column")
        try:
            self._images = rows.select_columns([self._image_column]).cast_column(
                self._image_column, Image(decode=False)
            )
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UserError(
                f"The column {self._image_column!r} of {self._name} does not hold images. Set "
                f"data.image_column to one of {', '.join(rows.column_names)}."
            ) from error
        self._caption_column = choice.caption_column and _column(rows, choice.caption_column, "data.caption_column")
        self._captions = rows.select_columns([self._caption_column]) if self._caption_column else None
        self._infos: list[SampleInfo | None] = [None] * len(rows)
        self._memo = Memo(Path(choice.cache_dir) / "datasets.json")
        self._stamp = _stamp(rows)
        self._recalled = self._memo.recall(self._memo_name(), self._stamp) if self._stamp else None

    def __len__(self) -> int:
        return len(self._infos)

    def info(self, index: int) -> SampleInfo:
        """Returns size, caption and fingerprint of a row."""
        known = self._infos[index]
        if known is None:
            fingerprint, width_px, height_px = self._recalled[index] if self._recalled else self._measured(index)
            known = self._infos[index] = SampleInfo(
                fingerprint=fingerprint, width_px=width_px, height_px=height_px, caption=self._caption(index)
            )
            if index == len(self) - 1 and not self._recalled:
                self._remember()
        return known

    def pixels(self, index: int) -> Pixels:
        """Returns the decoded image of a row."""
        return images.decode(self._bytes(index), self.name(index))

    def name(self, index: int) -> str:
        """Returns the number of the row, and the dataset."""
        return f"row {index} of {self._name}"

    def repeats(self, index: int) -> int:
        """Returns 1: each row is used once per epoch."""
        assert 0 <= index < len(self)
        return 1

    def notes(self) -> tuple[str, ...]:
        """Reports rows with an empty caption, if others have one."""
        if self._captions is None or self._trigger:
            return ()
        empty = [index for index in range(len(self)) if not self.info(index).caption]
        if not empty or len(empty) == len(self):
            return ()
        rows = ", ".join(map(str, empty[:3])) + (" and others" if len(empty) > len(empty[:3]) else "")
        return (
            f"{len(empty)} of {len(self)} captions of {self._name} are empty (rows {rows}): trained with no caption.",
        )

    def fingerprint(self) -> str:
        """Returns a hash over the images and captions of all rows."""
        return listed_fingerprint(self)

    def _bytes(self, index: int) -> bytes:
        cell = self._images[index][self._image_column]
        data = cell and cell.get("bytes")
        if not data and cell and cell.get("path"):
            try:
                with open_data(Path(cell["path"]), images.MOST_FILE_BYTES, self._within) as file:
                    data = read_opened(file)
            except UserError as error:
                raise UserError(
                    f"{self.name(index)} points to {shown(cell['path'])}. {error} (Or save the dataset again with "
                    "its images in it.)"
                ) from error
        if not data:
            raise UserError(f"{self.name(index)} has no image. Take the row out of the dataset.")
        return bytes(data)

    def _caption(self, index: int) -> str:
        if self._captions is None:
            return with_trigger(self._trigger, "")
        text = self._captions[index][self._caption_column]
        if text is not None and not isinstance(text, str):
            raise UserError(
                f"The column {self._caption_column!r} of {self._name} holds {type(text).__name__}, not text. "
                "Name another one in data.caption_column, or null to train without captions."
            )
        return with_trigger(self._trigger, " ".join((text or "").split()))

    def _memo_name(self) -> str:
        return " ".join([self._name, self._image_column, str(len(self)), *([self._where] if self._where else [])])

    def _measured(self, index: int) -> tuple[str, int, int]:
        data = self._bytes(index)
        width_px, height_px = images.size_px(data, self.name(index))
        return content_fingerprint(data), width_px, height_px

    def _remember(self) -> None:
        known = [info for info in self._infos if info is not None]
        if self._stamp and len(known) == len(self):
            facts = [[info.fingerprint, info.width_px, info.height_px] for info in known]
            self._memo.store(self._memo_name(), self._stamp, facts)
            self._memo.save()


def open_huggingface(choice: HuggingFaceData, largest: Bucket) -> HuggingFaceSource:  # noqa: ARG001
    """Opens the requested split."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtra("A Hugging Face dataset", "datasets") from error

    folder = existing_folder(choice.path, "data.path")
    within = None if choice.follow_links else folder
    saved = _saved_folder(folder, choice.split, within)
    if saved is not None:
        _require_readable(_files_of_saved(saved, within), within)
        rows = datasets.load_from_disk(str(saved))
        if rows.split is not None and str(rows.split) != choice.split:
            raise UnknownName(f"split in {choice.path}", choice.split, [str(rows.split)])
        if choice.where is not None:
            column, value = _condition(rows.features, choice.where)
            values = rows.select_columns([column])[column]
            rows = rows.select([index for index, found in enumerate(values) if found == value])
    else:
        files = _parquet_files(folder, choice)
        _require_readable(files, within)
        were_disabled = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            # The rows are copied to the cache: with a condition, only those that meet it.
            rows = datasets.Dataset.from_parquet(
                [str(file) for file in files],
                cache_dir=str(Path(choice.cache_dir) / "datasets"),
                filters=_parquet_filters(files[0], choice),
            )
        except ValueError as error:
            if choice.where is not None and "corresponds to no data" in str(error):
                raise _no_row(choice) from error
            raise
        finally:
            if not were_disabled:
                datasets.enable_progress_bars()
    if len(rows) == 0 and choice.where is not None:
        raise _no_row(choice)
    if len(rows) == 0:
        raise UserError(f"The split {choice.split!r} of {choice.path} has no rows. Name another one in data.split.")
    return HuggingFaceSource(rows, choice)


def _no_row(choice: HuggingFaceData) -> UserError:
    return UserError(f"No row of {choice.path} has the value of data.where: {choice.where}.")


def _parquet_filters(file: Path, choice: HuggingFaceData) -> list[tuple[str, str, Any]] | None:
    """The condition as `datasets` takes it; the names of class labels are in the schema of each file."""
    if choice.where is None:
        return None
    from datasets import Features
    from pyarrow.parquet import read_schema

    column, value = _condition(Features.from_arrow_schema(read_schema(file)), choice.where)
    return [(column, "==", value)]


def _condition(features: Any, where: str) -> tuple[str, Any]:
    """The column of a condition, and its value as the column holds it."""
    from datasets import ClassLabel

    name, _, text = where.partition("=")
    column, text = name.strip(), text.strip()
    if column not in features:
        raise UnknownName("column (from data.where)", column, list(features))
    feature = features[column]
    if isinstance(feature, ClassLabel) and text in feature.names:
        return column, feature.names.index(text)
    dtype = str(getattr(feature, "dtype", ""))
    if "int" in dtype:
        if text.isdecimal():
            return column, int(text)
        if isinstance(feature, ClassLabel):
            raise UnknownName(f"label of {column} (from data.where)", text, feature.names)
        raise UserError(
            f"data.where: the column {column!r} holds numbers without names. Look up the number of {text!r} on the "
            f"page of the data set, and write: data.where={column}=NUMBER"
        )
    if "string" not in dtype:
        raise UserError(f"data.where: the column {column!r} holds {dtype or 'lists'}, not text, labels or integers.")
    return column, text


def _saved_folder(folder: Path, split: str, within: Path | None) -> Path | None:
    """Returns the folder of a split saved by `save_to_disk`, or None if the folder was not made by it."""
    if os.path.lexists(folder / _SAVED):
        return folder
    if os.path.lexists(folder / _SAVED_SPLITS):
        known = _read_state(folder / _SAVED_SPLITS, within).get("splits", [])
        if split not in known:
            raise UnknownName(f"split in {folder}", split, map(str, known))
        return folder / split
    return folder / split if os.path.lexists(folder / split / _SAVED) else None


def _files_of_saved(saved: Path, within: Path | None) -> list[Path]:
    """Returns the data files that a saved split lists, and the files that list them."""
    rows = _read_state(saved / _SAVED, within).get("_data_files")
    names = [row.get("filename") if isinstance(row, dict) else None for row in rows or ()]
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{shown(saved / _SAVED)} is not of a saved dataset. Save it again.")
    return [saved / _INFO, *(saved / str(name) for name in names)]


def _read_state(file: Path, within: Path | None) -> dict[str, Any]:
    try:
        state = parse_json(read_data_text(file, _MOST_STATE_BYTES, within))
    except ValueError as error:
        raise UserError(f"{shown(file)} is not JSON ({error}). Save the dataset again.") from error
    if not isinstance(state, dict):
        raise UserError(f"{shown(file)} should hold a JSON object. Save the dataset again.")
    return state


def _require_readable(files: Iterable[Path], within: Path | None) -> None:
    """Raises on unsafe files before `datasets` opens them, which would follow links and wait for pipes."""
    for file in files:
        open_data(file, _MOST_ROWS_BYTES, within).close()


def _parquet_files(folder: Path, choice: HuggingFaceData) -> list[Path]:
    """Returns the files named after the split or in such a folder; files without a split name are training data."""
    files = sorted(
        (file for file in folder.rglob("*.parquet") if not file.name.startswith(".")),
        key=lambda file: file.relative_to(folder).as_posix(),
    )
    if not files:
        raise UserError(
            f"{choice.path} is not a Hugging Face dataset on disk: it has neither a {_SAVED} from save_to_disk "
            "nor Parquet files. Set data.path to a folder that has; for a folder of images, data.kind=folder."
        )
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_name(file, folder, choice.split), []).append(file)
    if choice.split in by_split:
        return by_split[choice.split]
    raise UnknownName(f"split in {choice.path}", choice.split, by_split)


def _split_name(file: Path, folder: Path, asked: str) -> str:
    known = (asked, "train", "test", "validation", "valid", "val", "dev")
    places = [*file.relative_to(folder).parts[:-1], file.stem]
    for place in reversed(places):
        for name in known:
            if place == name or place.startswith((f"{name}-", f"{name}_", f"{name}.")):
                return name
    return "train"


def _column(rows: Any, name: str, setting: str) -> str:
    if name not in rows.column_names:
        raise UnknownName(f"column (from {setting})", name, rows.column_names)
    return name


def _stamp(rows: Any) -> Stamp | None:
    """Returns the stamp of the files behind the rows; None if the rows are in memory."""
    files = [Path(file["filename"]) for file in rows.cache_files]
    return stamp(files) if files else None
