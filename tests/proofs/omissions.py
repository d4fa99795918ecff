"""Checkpoints that lack one thing, as a writer that forgets it would leave them: whole to look at, hashes and all."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

Omit = Callable[[Path], None]
"""Takes one thing out of the checkpoint in a folder."""


def omissions(checkpoint: Path, *, every: int) -> Iterator[tuple[str, Omit]]:
    """Each thing that can be left out of this checkpoint, with its name; of single tensors one in so many."""
    yield from ((path.name, _file_remover(path.name)) for path in sorted(checkpoint.iterdir()))
    yield "manifest.json and everything", _remove_everything
    manifest = _read(checkpoint / "manifest.json")
    state = _read(checkpoint / "state.json")
    yield from ((f"{key} of the manifest", _manifest_key_remover(key)) for key in manifest)
    yield from ((f"{name} of the manifest's files", _manifest_file_remover(name)) for name in manifest["files"])
    yield from ((f"{key} of the state", _state_key_remover(key)) for key in state)
    yield from ((f"{key} of the scaler", _state_key_remover("scaler", key)) for key in state["scaler"])
    for path in sorted(checkpoint.glob("*.safetensors")):
        names = sorted(load_file(path))
        yield f"all tensors of {path.name}", _tensor_remover(path.name, names)
        yield from ((f"{name} of {path.name}", _tensor_remover(path.name, [name])) for name in names[::every])
    # The optimizer's tensors are named weight/field.
    names = sorted(load_file(checkpoint / "optimizer.safetensors"))
    weights, kept = (sorted({name.rpartition("/")[part] for name in names}) for part in (0, 2))
    for weight in weights[::every]:
        yield (
            f"the optimizer's state of {weight}",
            _tensor_remover("optimizer.safetensors", [f"{weight}/{k}" for k in kept]),
        )
    for field in kept:
        yield f"the optimizer's {field}", _tensor_remover("optimizer.safetensors", [f"{w}/{field}" for w in weights])


def mend_manifest(checkpoint: Path) -> None:
    """Makes the manifest say what is there, as if nothing had ever been forgotten."""
    manifest = _read(checkpoint / "manifest.json")
    manifest["files"] = {
        path.name: {
            "num_bytes": path.stat().st_size,
            "blake2b": hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(),
        }
        for path in sorted(checkpoint.iterdir())
        if path.name != "manifest.json"
    }
    _write(checkpoint / "manifest.json", manifest)


def _file_remover(name: str) -> Omit:
    def omit(checkpoint: Path) -> None:
        (checkpoint / name).unlink()
        if name != "manifest.json":
            mend_manifest(checkpoint)

    return omit


def _remove_everything(checkpoint: Path) -> None:
    for path in checkpoint.iterdir():
        path.unlink()


def _manifest_key_remover(key: str) -> Omit:
    def omit(checkpoint: Path) -> None:
        manifest = _read(checkpoint / "manifest.json")
        del manifest[key]
        _write(checkpoint / "manifest.json", manifest)

    return omit


def _manifest_file_remover(name: str) -> Omit:
    def omit(checkpoint: Path) -> None:
        manifest = _read(checkpoint / "manifest.json")
        del manifest["files"][name]
        _write(checkpoint / "manifest.json", manifest)

    return omit


def _state_key_remover(*keys: str) -> Omit:
    def omit(checkpoint: Path) -> None:
        state = _read(checkpoint / "state.json")
        inner = state
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        _write(checkpoint / "state.json", state)
        mend_manifest(checkpoint)

    return omit


def _tensor_remover(file: str, names: list[str]) -> Omit:
    def omit(checkpoint: Path) -> None:
        tensors = load_file(checkpoint / file)
        for name in names:
            tensors.pop(name, None)  # not every weight has every field
        save_file(tensors, checkpoint / file)
        mend_manifest(checkpoint)

    return omit


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
