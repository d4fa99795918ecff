"""The datasets of SimpleTuner: resolution in config.json, folders in multidatabackend.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune.config.from_trainers.beside import read_beside
from foretune.config.from_trainers.data_words import round_px, set_folders
from foretune.config.from_trainers.sheet import Sheet, text_of

_OTHER_TYPES = ("text_embeds", "image_embeds", "eval")
_MEGAPIXEL = 1_000_000


def set_data(sheet: Sheet, folder: Path) -> None:
    """Sets the folders, the largest resolution and the number of frames."""
    keys = sheet.keys
    found = read_beside(sheet, "data_backend_config", folder)
    backends = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []
    trained = [entry for entry in backends if entry.get("dataset_type", "image") not in _OTHER_TYPES]
    if any(entry.get("dataset_type") == "conditioning" for entry in trained):
        sheet.refuse("data_backend_config", "a dataset of conditioning images: control is not supported")
        return
    folders, other_types = [], []
    for entry in trained:
        kind, path = str(entry.get("type", "local")), entry.get("instance_data_dir")
        if kind == "local" and isinstance(path, str):
            repeats = entry.get("repeats", 0)
            folders.append((path, repeats + 1 if isinstance(repeats, int) and repeats >= 0 else 1))
        else:
            other_types.append(kind)
    if other_types:
        sheet.assume(f"datasets of the type {', '.join(sorted(set(other_types)))} are left out; only folders are read")
    single = text_of(keys, "instance_data_dir")
    if single and not folders:
        folders = [(single, 1)]
        keys.answer("instance_data_dir", "translated", "data.path")
    set_folders(sheet, folders)
    if trained:
        keys.answer("data_backend_config", "translated", f"{len(folders)} folders: path, repeats, resolution")
    elif "data_backend_config" in keys:
        sheet.lacks("data_backend_config", "the file is not beside this one. Set data.path")
    _set_captions(sheet, trained)
    _set_resolution(sheet, trained)
    _set_frames(sheet, trained)


def _set_captions(sheet: Sheet, backends: list[Mapping[str, Any]]) -> None:
    """Captions are in text files, or they are the names of the images."""
    usual = text_of(sheet.keys, "caption_strategy")
    strategies = {str(entry.get("caption_strategy", usual or "")) for entry in backends} or {usual or ""}
    if strategies == {"filename"}:
        sheet.settings["data.captions"] = "filename"
    elif "filename" in strategies:
        sheet.assume("datasets with caption_strategy=filename beside others: their captions must be text files")


def _set_resolution(sheet: Sheet, backends: list[Mapping[str, Any]]) -> None:
    """The largest of all datasets decides what a step takes."""
    keys = sheet.keys
    usual, kind = keys.number("resolution", 1024.0), text_of(keys, "resolution_type") or "pixel_area"
    sides = [
        side
        for entry in backends
        if (side := _side_px(entry.get("resolution", usual), str(entry.get("resolution_type", kind)))) is not None
    ]
    whole = _side_px(usual, kind)
    largest = max(sides, default=whole)
    if largest is None:
        return
    px = round_px(largest)
    sheet.settings["data.resolution"] = px
    for key in ("resolution", "resolution_type"):
        if backends and px != round_px(whole or px):
            keys.answer(key, "not needed", "the datasets have their own")
        keys.answer(key, "translated", f"data.resolution={px}")
    if len(set(sides)) > 1:
        sheet.assume(f"of several resolutions the largest is taken: {px} px")


def _side_px(value: Any, kind: str) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        return None
    return float((value * _MEGAPIXEL) ** 0.5 if kind == "area" else value)


def _set_frames(sheet: Sheet, backends: list[Mapping[str, Any]]) -> None:
    frames = [
        video["num_frames"]
        for entry in backends
        if isinstance(video := entry.get("video"), Mapping)
        and isinstance(video.get("num_frames"), int)
        and video["num_frames"] > 0
    ]
    if frames:
        sheet.settings["data.num_frames"] = max(frames)
