"""Ways in which a checkpoint on a disk is not what was written."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.proofs.ends import hashes_of

Corrupt = Callable[[Path, random.Random], None]
"""Damages the checkpoint in a folder."""


def corrupt(checkpoint: Path, kind: str, others: Path, rng: random.Random) -> None:
    """Damages until something is different: two files can be equal, so that swapping them is no damage.

    `others` holds undamaged checkpoints of other steps.
    """
    before = hashes_of(checkpoint)
    while _current(checkpoint) == before:
        if kind in MIX_UPS:
            chosen = rng.choice(sorted(path for path in others.glob("step-*") if path.name != checkpoint.name))
            MIX_UPS[kind](checkpoint, chosen, rng)
        else:
            CORRUPTIONS[kind](checkpoint, rng)


def _current(checkpoint: Path) -> dict[str, str] | None:
    try:
        return hashes_of(checkpoint)
    except OSError:
        return None


def _some_file(checkpoint: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(checkpoint.iterdir()))


def _flip_bit(checkpoint: Path, rng: random.Random) -> None:
    path = _some_file(checkpoint, rng)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _flip_bit_of_tensor(checkpoint: Path, rng: random.Random) -> None:
    """Behind the header: every reader of the format takes it as it is."""
    path = rng.choice(sorted(checkpoint.glob("*.safetensors")))
    content = bytearray(path.read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")
    if first < len(content):
        content[rng.randrange(first, len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _zero_block(checkpoint: Path, rng: random.Random) -> None:
    path = _some_file(checkpoint, rng)
    content = bytearray(path.read_bytes())
    first = rng.randrange(len(content))
    content[first : first + 512] = bytes(len(content[first : first + 512]))
    path.write_bytes(content)


def _truncate(checkpoint: Path, rng: random.Random) -> None:
    path = _some_file(checkpoint, rng)
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def _empty(checkpoint: Path, rng: random.Random) -> None:
    _some_file(checkpoint, rng).write_bytes(b"")


def _extend(checkpoint: Path, rng: random.Random) -> None:
    path = _some_file(checkpoint, rng)
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 64)))


def _remove(checkpoint: Path, rng: random.Random) -> None:
    _some_file(checkpoint, rng).unlink()


def _swap(checkpoint: Path, rng: random.Random) -> None:
    first, second = rng.sample(sorted(checkpoint.iterdir()), 2)
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def _take_file_of_other_step(checkpoint: Path, other: Path, rng: random.Random) -> None:
    path = _some_file(checkpoint, rng)
    shutil.copy(other / path.name, path)


def _take_all_of_other_step(checkpoint: Path, other: Path, rng: random.Random) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(other, checkpoint)


def _edit_manifest(checkpoint: Path, rng: random.Random) -> None:
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    holders: list[dict[str, Any]] = [manifest, manifest["files"], *manifest["files"].values()]
    holder = rng.choice(holders)
    key = rng.choice(sorted(holder))
    value = holder.pop(key)
    other: list[Any] = [None, "", -1, 2.5, [], {}, [[1, 2]], f"{value}0", "../" + key, "\x00"]
    match rng.randrange(3):
        case 0:
            pass
        case 1:
            holder[key] = rng.choice([choice for choice in other if choice != value])
        case _:
            holder[rng.choice(["../" + key, key.upper(), "", "..", "\x00", "/etc/passwd"])] = value
    path.write_text(json.dumps(manifest))


def _edit_state(checkpoint: Path, rng: random.Random) -> None:
    path = checkpoint / "state.json"
    state = json.loads(path.read_text())
    state[rng.choice(sorted(state))] = rng.choice([None, 7, "3", [], {}])
    path.write_text(json.dumps(state))


def _replace_text(checkpoint: Path, rng: random.Random) -> None:
    content = rng.choice([b"[]", b"null", b"3", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"files": {}}', b"\x00" * 64])
    (checkpoint / rng.choice(["manifest.json", "state.json"])).write_bytes(content)


def _file_becomes_folder(checkpoint: Path, rng: random.Random) -> None:
    path = _some_file(checkpoint, rng)
    path.unlink()
    path.mkdir()


def _file_becomes_link_to_nothing(checkpoint: Path, rng: random.Random) -> None:
    path = _some_file(checkpoint, rng)
    path.unlink()
    path.symlink_to("nothing")


def _folder_becomes_empty(checkpoint: Path, rng: random.Random) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def _folder_becomes_file(checkpoint: Path, rng: random.Random) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_bytes(rng.randbytes(16))


CORRUPTIONS: dict[str, Corrupt] = {
    "a bit flipped": _flip_bit,
    "a bit of a tensor flipped": _flip_bit_of_tensor,
    "a block of zeros": _zero_block,
    "cut off": _truncate,
    "emptied": _empty,
    "extended": _extend,
    "a file missing": _remove,
    "two files swapped": _swap,
    "the manifest edited": _edit_manifest,
    "the state edited": _edit_state,
    "other text": _replace_text,
    "a folder for a file": _file_becomes_folder,
    "a link to nothing": _file_becomes_link_to_nothing,
    "an empty folder": _folder_becomes_empty,
    "a file for the folder": _folder_becomes_file,
}

MIX_UPS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "a file of another step": _take_file_of_other_step,
    "another step under this name": _take_all_of_other_step,
}

KINDS = (*CORRUPTIONS, *MIX_UPS)
