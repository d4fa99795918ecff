"""The datasets of sd-scripts: options of the command line, or a dataset config beside it."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foretune.config.from_trainers.beside import name_beside, text_beside
from foretune.config.from_trainers.data_words import round_px, set_folders
from foretune.config.from_trainers.sheet import Sheet, text_of

_PAIR = 2


def set_data(sheet: Sheet, folder: Path) -> None:
    """Sets the folders, the largest resolution, the batch of a dataset config, and the length of captions."""
    keys = sheet.keys
    found = _dataset_config(sheet, folder)
    datasets = list(_datasets(found)) if found is not None else []
    subsets = [subset for dataset in datasets for subset in _sections(dataset, "subsets")]
    if any(subset.get("is_reg") is True for subset in subsets):
        sheet.refuse("dataset_config", "prior preservation is not supported; leave out the regularisation images")
    if any("conditioning_data_dir" in subset for subset in subsets):
        sheet.refuse("dataset_config", "a dataset of conditioning images: control is not supported")
    folders = [(str(one["image_dir"]), _whole(one.get("num_repeats"), 1)) for one in subsets if "image_dir" in one]
    single = text_of(keys, "train_data_dir")
    if single is not None and not folders:
        folders = [(single, 1)]
    keys.answer("train_data_dir", "translated", "data.path")
    set_folders(sheet, folders)
    _set_resolution(sheet, datasets)
    batches = [_whole(dataset.get("batch_size"), 0) for dataset in datasets]
    if any(batches):
        sheet.settings["train.batch_size"] = max(batches)
    if datasets:
        keys.answer("dataset_config", "translated", f"{len(folders)} folders: path, repeats, resolution, batch")
    elif "dataset_config" in keys:
        sheet.lacks(
            "dataset_config", "the file is not beside this one. Set data.path, data.resolution, train.batch_size"
        )
        sheet.assume(
            f"batch {sheet.settings.get('train.batch_size', 1)}, without {name_beside(sheet, 'dataset_config')}"
        )
    for key in ("t5xxl_max_token_length", "max_token_length"):
        if key in keys:
            sheet.set(key, "data.max_text_tokens", keys.integer(key, 77, at_least=8))


def _dataset_config(sheet: Sheet, folder: Path) -> Mapping[str, Any] | None:
    text = text_beside(sheet, "dataset_config", folder)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        sheet.keys.problems.append(f"dataset_config: it cannot be read as TOML: {error}")
        return None


def _datasets(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each with what `general` says of all of them."""
    general = found.get("general")
    for dataset in _sections(found, "datasets"):
        yield {**(general if isinstance(general, Mapping) else {}), **dataset}


def _sections(mapping: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = mapping.get(key)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _set_resolution(sheet: Sheet, datasets: list[dict[str, Any]]) -> None:
    keys = sheet.keys
    sizes = [
        size for one in (*datasets, {"resolution": keys.get("resolution")}) if (size := _size(one.get("resolution")))
    ]
    if "resolution" in keys and _size(keys.get("resolution")) is None:
        keys.problems.append('resolution: should be a side in pixels, or "width,height"')
    if not sizes:
        sheet.assume("the resolution is not stated: the model's own")
        return
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    sheet.settings["data.resolution"] = width if width == height else f"{width}x{height}"
    keys.answer("resolution", "translated", f"data.resolution={sheet.settings['data.resolution']}")
    if len(set(sizes)) > 1:
        sheet.assume(f"of several resolutions the largest is taken: {width}x{height} px")


def _size(value: Any) -> tuple[int, int] | None:
    """Width and height of 512, "512", "768,512" or [768, 512]."""
    parts = value if isinstance(value, list) else str(value).split(",")
    try:
        sides = [round_px(int(str(part).strip())) for part in parts]
    except ValueError:
        return None
    if not sides or len(sides) > _PAIR or min(sides) <= 0 or isinstance(value, bool):
        return None
    return sides[0], sides[-1]


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
