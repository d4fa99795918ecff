"""The kind of data that a folder or an address holds, by the files that tell kinds apart."""

import os
from pathlib import Path
from typing import Any

from foretune.choices.addresses import is_remote
from foretune.core.input_files import read_json

_PACKED, _ENCODED = "shards.json", "encoded.json"
_SAVED_DATASETS = ("dataset_info.json", "dataset_dict.json", "state.json")
_CIFAR10 = ("data_batch_1", "cifar-10-batches-py", "cifar-10")
_MOST_ENCODED_BYTES = 2**28
_FLIPS = {"never": 0.0, "sometimes": 0.5, "always": 1.0}


def data_keys(place: str, *, is_video: bool) -> dict[str, Any]:
    """The keys of `data` that train on what a place holds.

    That is a packed or encoded set, a Hugging Face dataset, CIFAR-10, or else images, for a video model clips. An
    address is taken for a packed set, because its files are not read here.
    """
    if is_remote(place):
        return {"kind": "shards", "path": place}
    folder = Path(place).expanduser()
    if _has(folder, _ENCODED):
        return _encoded_keys(place, folder / _ENCODED)
    if _has(folder, _PACKED):
        kind = "shards"
    elif _has(folder, *_SAVED_DATASETS) or _has_parquet(folder):
        kind = "huggingface"
    elif _has(folder, *_CIFAR10) or _is_kaggles_cifar10(folder):
        kind = "cifar10"
    else:
        kind = "clips" if is_video else "folder"
    return {"kind": kind, "path": place}


def _has(folder: Path, *names: str) -> bool:
    return any(os.path.lexists(folder / name) for name in names)


def _has_parquet(folder: Path) -> bool:
    """Tables in the folder, or in `data` as datasets lie on the Hub."""
    return any(folder.glob("*.parquet")) or any(folder.glob("data/*.parquet"))


def _is_kaggles_cifar10(folder: Path) -> bool:
    """`train/1.png` alone may also be a photo with its caption."""
    return _has(folder, "train/1.png") and (_has(folder, "trainLabels.csv") or not _has(folder, "train/1.txt"))


def _encoded_keys(place: str, facts: Path) -> dict[str, Any]:
    """The data as they were when the set was encoded, as far as the set depends on them."""
    try:
        settings = dict(read_json(facts, _MOST_ENCODED_BYTES)["settings"])
    except (OSError, ValueError, LookupError, TypeError):
        settings = {}  # reading the set reports what is wrong with it
    found = {key.removeprefix("data."): value for key, value in settings.items() if key.startswith("data.")}
    found = {key: value for key, value in found.items() if value not in (None, [], "any")}
    size, _, frames = str(found.pop("resolution", "")).removesuffix(" frames").partition(", ")
    flip = _FLIPS.get(str(found.pop("flip", "never")), 0.0)
    sizes = {"resolution": size or None, "num_frames": int(frames) if frames.isdecimal() else None, "flip": flip}
    kind = found.pop("kind", "folder")
    path = {} if kind == "shapes" else {"path": place}
    return {"kind": kind, **path, "encoded": place, **found, **{key: value for key, value in sizes.items() if value}}
