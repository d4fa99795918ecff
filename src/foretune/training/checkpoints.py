"""Checkpoints: written whole or not at all, read back before they count, and never trusted when loaded.

A checkpoint is a directory of safetensors files, a state.json and a manifest with the size and hash of each. It is
written under another name, flushed to the disk, read back and compared, and only then renamed into place: a kill at
any moment leaves the older checkpoints as they were. No pickle: loading one runs no code.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from foretune.core.errors import UserError
from foretune.record.atomic import sync_directory

_FORMAT_VERSION = 1
_NAME = re.compile(r"^step-(\d{9})$")
_MANIFEST = "manifest.json"
_STATE = "state.json"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped."""

    step: int
    """Optimizer steps that are done."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """By component: weights, optimizer, and the moving average where there is one."""
    scalars: Mapping[str, Any]


class DamagedCheckpoint(Exception):
    """What is wrong with one checkpoint; the reader goes on to the next older one."""


class NoGoodCheckpoint(UserError):
    """There are checkpoints and none can be trusted: going on would silently start anew."""


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory, self._keep = directory, keep

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        names = (_NAME.match(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def path(self, step: int) -> Path:
        return self.directory / f"step-{step:09d}"

    def write(self, checkpoint: Checkpoint) -> Path:
        """Commits a checkpoint, then removes those past the number to keep."""
        self._clear_leftovers()
        final = self.path(checkpoint.step)
        temporary = self.directory / f".writing-{final.name}"
        try:
            _write_files(temporary, checkpoint)
        except Exception:
            # On a full disk, what was written so far would take the room that the log and the record need.
            self._clear_leftovers()
            raise
        if os.path.lexists(final):
            # A run goes on from its newest good checkpoint, so one that is in its way was refused when it was read.
            self._set_aside(final)
        temporary.rename(final)
        sync_directory(self.directory)
        # Newer ones were refused too: counting them would push out the good ones.
        for step in [step for step in self.steps() if step <= checkpoint.step][: -self._keep]:
            self._set_aside(self.path(step))
        self._clear_leftovers()
        return final

    def read_newest(
        self, components: Iterable[str], check: Callable[[Checkpoint], None] | None = None
    ) -> tuple[Checkpoint, list[str]] | None:
        """The newest checkpoint that is whole, and what was wrong with newer ones; None where there is none at all.

        `check` may refuse what a reader cannot judge, such as whether it fits the model, with DamagedCheckpoint.
        """
        components, steps = tuple(components), self.steps()
        faults: list[str] = []
        for step in reversed(steps):
            try:
                checkpoint = read(self.path(step), components)
                if check is not None:
                    check(checkpoint)
                return checkpoint, faults
            except DamagedCheckpoint as fault:
                faults.append(f"{self.path(step).name}: {fault}")
        if steps:
            listed = "\n".join(f"  {fault}" for fault in faults)
            raise NoGoodCheckpoint(
                f"None of the {len(steps)} checkpoints in {self.directory} is whole:\n{listed}\n"
                "Restore one from a backup, or start a new run: foretune train experiment.yaml"
            )
        return None

    def _set_aside(self, path: Path) -> None:
        """Renamed before it is removed: a checkpoint that is half removed must not look like one."""
        path.rename(self.directory / f".removing-{path.name}")

    def _clear_leftovers(self) -> None:
        for pattern in (".writing-*", ".removing-*"):
            for path in self.directory.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def verify(path: Path) -> dict[str, Any]:
    """Checks that every file of a checkpoint is what was written; returns the manifest."""
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        version, files = manifest["format_version"], manifest["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"the manifest cannot be read ({error})") from error
    if version != _FORMAT_VERSION:
        raise DamagedCheckpoint(f"format version {version} is not known to this release")
    for name, expected in files:
        if Path(name).name != name:
            raise DamagedCheckpoint(f"the manifest names a file outside the checkpoint: {name!r}")
        try:
            found = _describe(path / name)
        except (OSError, ValueError) as error:
            raise DamagedCheckpoint(f"{name} cannot be read ({error})") from error
        if found != expected:
            raise DamagedCheckpoint(f"{name} is not what was written")
    return dict(manifest)


def read(path: Path, components: Iterable[str]) -> Checkpoint:
    """A verified checkpoint with exactly these components."""
    manifest = verify(path)
    wanted = {f"{name}.safetensors" for name in components} | {_STATE}
    if set(manifest["files"]) != wanted:
        difference = ", ".join(sorted(set(manifest["files"]) ^ wanted))
        raise DamagedCheckpoint(f"it does not hold the parts this experiment needs: {difference}")
    try:
        tensors = {name: load_file(path / f"{name}.safetensors") for name in components}
        state = dict(json.loads((path / _STATE).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise DamagedCheckpoint(f"it cannot be read ({error})") from error
    step = state.pop("step", None)
    if not isinstance(step, int) or step != manifest.get("step") or path.name != f"step-{step:09d}":
        raise DamagedCheckpoint(f"it says it is of step {step}, its manifest of {manifest.get('step')}")
    return Checkpoint(step, tensors, state)


def _write_files(directory: Path, checkpoint: Checkpoint) -> None:
    directory.mkdir()
    files = {f"{name}.safetensors": tensors for name, tensors in checkpoint.tensors.items()}
    for name, tensors in files.items():
        _write_tensors(directory / name, tensors)
    _write_bytes(directory / _STATE, _json({"step": checkpoint.step, **checkpoint.scalars}))
    manifest = {
        "format_version": _FORMAT_VERSION,
        "step": checkpoint.step,
        "files": {name: _describe(directory / name) for name in (*files, _STATE)},
    }
    _write_bytes(directory / _MANIFEST, _json(manifest))
    sync_directory(directory)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes, flushes to the disk, reads back and compares bit for bit."""
    on_cpu = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    save_file(on_cpu, path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    with safe_open(path, framework="pt") as written:
        # One tensor at a time: a second copy of everything might not fit beside the first.
        for name, tensor in on_cpu.items():
            if not _same_bits(written.get_tensor(name), tensor):
                raise OSError(f"{path} reads back different from what was written: {name}")


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _write_bytes(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _describe(path: Path) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    num_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return {"num_bytes": num_bytes, "blake2b": digest.hexdigest()}


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
