"""The files of one checkpoint: safetensors, a state.json, and a manifest with the size and hash of each.

Whole tensors are one file for each component. Processes that share a model write one file each, with their shards of
all components, in the safetensors layout of torch.distributed.checkpoint: offsets stand in the header of the file, and
torch's own reader puts the shards together for any other number of processes. No pickle: loading one runs no code.
"""

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from foretune.core.input_files import MOST_JSON_BYTES, RefusedFile, open_input, read_json
from foretune.core.memory_errors import lacking_memory
from foretune.core.tensor_files import MOST_TENSOR_FILE_BYTES, require_tensor_file
from foretune.record.atomic import sync_directory
from foretune.step.engine import is_sharded, own_shard
from foretune.training.not_finite import NotFinite, first_not_finite
from foretune.training.ranks import ALONE, Ranks
from foretune.training.shard_files import OFFSETS, SHARDING_INFO, whole_tensors
from foretune.training.streamed_files import same_bits

_WHOLE, _SHARDED = 1, 2
"""Versions of the format. Releases that know only the first refuse the second."""
_MANIFEST = "manifest.json"
_STATE = "state.json"
_SHARD_FILE = re.compile(r"^shard-\d{5}\.safetensors$")
_BLOCK_BYTES = 1 << 20

# What files do to their readers that are damaged, or lie about their sizes.
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped."""

    step: int
    """Optimizer steps that are done."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """By component: weights, optimizer, and the moving average where there is one. DTensors where they are sharded."""
    scalars: Mapping[str, Any]


@dataclass(frozen=True)
class Shard:
    """What one process writes of a tensor."""

    tensor: Tensor
    offset: tuple[int, ...] | None = None
    """Where it begins in the whole tensor; None where it is the whole one in a file of whole ones."""


Files = Mapping[str, Mapping[str, Shard]]
"""Names of files, and the tensors in each by name."""
Place = Callable[[str, str, tuple[int, ...], torch.dtype], Tensor]
"""Makes the tensor, or DTensor, that one of a sharded checkpoint is read into: component, name, shape, dtype."""


class DamagedCheckpoint(Exception):
    """What is wrong with one checkpoint; the reader goes on to the next older one."""


def files_of(checkpoint: Checkpoint, ranks: Ranks = ALONE) -> Files:
    """What this process has to write. Nothing is copied."""
    parts = checkpoint.tensors.items()
    if not any(is_sharded(tensor) for _, part in parts for tensor in part.values()):
        if not ranks.is_first:
            return {}
        return {f"{name}.safetensors": {key: Shard(tensor) for key, tensor in part.items()} for name, part in parts}
    own: dict[str, Shard] = {}
    for name, part in parts:
        for key, tensor in part.items():
            if is_sharded(tensor):
                found = own_shard(tensor)
            else:
                found = (tensor, (0,) * tensor.ndim) if ranks.is_first else None
            if found is not None:
                own[f"{name}/{key}"] = Shard(*found)
    return {f"shard-{ranks.rank + 1:05d}.safetensors": own} if own else {}


def copied_to_host(files: Files) -> Files:
    """The same shards as they are now, in memory that the training does not touch."""
    return {
        name: {key: Shard(shard.tensor.detach().to("cpu", copy=True), shard.offset) for key, shard in shards.items()}
        for name, shards in files.items()
    }


def write_tensors(directory: Path, files: Files) -> dict[str, dict[str, Any]]:
    """Writes files of tensors, flushes them to the disk, reads them back and compares; returns sizes and hashes."""
    for name, shards in files.items():
        _write_file(directory / name, shards)
    return {name: _describe(directory / name) for name in files}


def write_manifest(
    directory: Path, step: int, scalars: Mapping[str, Any], written: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes the rest of a checkpoint whose files of tensors are written, by any process."""
    _write_bytes(directory / _STATE, _json({"step": step, **scalars}))
    manifest = {
        "format_version": _SHARDED if any(_SHARD_FILE.match(name) for name in written) else _WHOLE,
        "step": step,
        "files": {**written, _STATE: _describe(directory / _STATE)},
    }
    _write_bytes(directory / _MANIFEST, _json(manifest))
    sync_directory(directory)


def verify(path: Path, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Checks that the files of a checkpoint are what was written; returns the manifest.

    Each of several processes checks its share of the files, so that together they read everything once.
    """
    try:
        manifest = read_json(path / _MANIFEST, MOST_JSON_BYTES, within=path)
        version, files = manifest["format_version"], sorted(manifest["files"].items())
    except (RefusedFile, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{_MANIFEST} cannot be read ({error})") from error
    if version not in (_WHOLE, _SHARDED):
        raise DamagedCheckpoint(f"format version {version} is not known to this release")
    for name, _ in files:
        if Path(name).name != name:
            raise DamagedCheckpoint(f"the manifest names a file outside the checkpoint: {name!r}")
        if name != _STATE and not name.endswith(".safetensors"):
            raise DamagedCheckpoint(f"the manifest names {name!r}, which is no file of a checkpoint")
    for name, expected in files[ranks.rank :: ranks.size]:
        try:
            if name.endswith(".safetensors"):
                require_tensor_file(path / name, within=path)
            is_whole = _is_as_described(path / name, expected)
        except (RefusedFile, OSError, ValueError) as error:
            raise DamagedCheckpoint(f"{name} cannot be read ({error})") from error
        if not is_whole:
            raise DamagedCheckpoint(f"{name} is not what was written")
    return dict(manifest)


def read(path: Path, components: Iterable[str], ranks: Ranks = ALONE, place: Place | None = None) -> Checkpoint:
    """A verified checkpoint with exactly these components. Without a `place`, tensors are whole and on the host."""
    manifest, components = verify(path, ranks), tuple(components)
    names = set(manifest["files"])
    try:
        for name in sorted(names):
            if name.endswith(".safetensors"):
                _require_readable(path / name)
        if manifest["format_version"] == _WHOLE:
            _require_parts(names, {_STATE, *(f"{name}.safetensors" for name in components)})
            tensors: dict[str, Mapping[str, Tensor]] = {
                name: _read_whole(path / f"{name}.safetensors") for name in components
            }
        else:
            # Torch reads every file of this kind that it finds.
            _require_parts({_STATE, *(file.name for file in path.glob("*.safetensors"))}, names)
            tensors = _read_shards(path, components, place) if place else _whole(path, names, components)
        state = _read_state(path / _STATE)
    except (RefusedFile, OSError, *_DAMAGED) as error:
        raise DamagedCheckpoint(f"it cannot be read ({error})") from error
    step = state.pop("step", None)
    if not isinstance(step, int) or step != manifest.get("step") or path.name != f"step-{step:09d}":
        raise DamagedCheckpoint(f"{_STATE} says it is of step {step}, {_MANIFEST} of {manifest.get('step')}")
    return Checkpoint(step, tensors, state)


def _require_readable(path: Path) -> None:
    """Raises where a file is a pipe or a device, or its header is damaged: torch's reader would not name it."""
    require_tensor_file(path, within=path.parent)
    try:
        with safe_open(path, framework="pt"):
            pass
    except (OSError, *_DAMAGED) as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read ({error})") from error


def _read_whole(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, *_DAMAGED) as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read ({error})") from error
    return tensors


def _read_state(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path, MOST_JSON_BYTES, within=path.parent))
    except (ValueError, TypeError) as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read ({error})") from error


def _whole(path: Path, names: set[str], components: tuple[str, ...]) -> dict[str, Mapping[str, Tensor]]:
    found = whole_tensors(path / name for name in sorted(names - {_STATE}))
    _require_parts({*found} - {*components}, set())
    return {name: found.get(name, {}) for name in components}


def _read_shards(path: Path, components: tuple[str, ...], place: Place) -> dict[str, Mapping[str, Tensor]]:
    """Has torch put the shards together; each process reads what its own part needs, without asking the others."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(path))
    targets: dict[str, Tensor] = {}
    tensors: dict[str, dict[str, Tensor]] = {name: {} for name in components}
    for key, found in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(found, TensorStorageMetadata)
        component, _, name = key.partition("/")
        _require_parts({component} - {*components}, set())
        if sum(math.prod(chunk.sizes) for chunk in found.chunks) != math.prod(found.size):
            raise DamagedCheckpoint(f"the shards of {key} are not the whole tensor")
        targets[key] = tensors[component][name] = place(component, name, tuple(found.size), found.properties.dtype)
    with warnings.catch_warnings():
        # It warns that processes do not work together, which is what is wanted.
        warnings.simplefilter("ignore")
        try:
            load(targets, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            # Not an Exception of Python's own; what really happened is inside.
            (cause, _), *_ = error.failures.values()
            if lacking_memory(cause):
                raise cause from error
            raise DamagedCheckpoint(f"it cannot be read ({cause})") from error
    return dict(tensors)


def _require_parts(found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        difference = ", ".join(sorted(found ^ wanted))
        raise DamagedCheckpoint(f"files or components are missing, or too many: {difference}")


def _write_file(path: Path, shards: Mapping[str, Shard]) -> None:
    """Writes, flushes to the disk, reads back and compares bit for bit. Refuses what training cannot go on from."""
    on_cpu = {name: shard.tensor.detach().cpu().contiguous() for name, shard in shards.items()}
    if (found := first_not_finite(on_cpu.items())) is not None:
        raise NotFinite(f"{found} of {path.stem} holds NaN or infinite values")
    save_file(on_cpu, path, metadata=_header(shards))
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    with safe_open(path, framework="pt") as written:
        # One tensor at a time: a second copy of everything might not fit beside the first.
        for name, tensor in on_cpu.items():
            if not same_bits(written.get_tensor(name), tensor):
                raise OSError(f"{path} reads back different from what was written: {name}")


def _header(shards: Mapping[str, Shard]) -> dict[str, str] | None:
    offsets = {name: {OFFSETS: list(shard.offset)} for name, shard in shards.items() if shard.offset is not None}
    # One entry and no more: safetensors writes several in an order that changes from call to call, and equal
    # checkpoints would have different hashes.
    return {SHARDING_INFO: json.dumps(offsets)} if offsets else None


def _write_bytes(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _describe(path: Path) -> dict[str, Any]:
    with open_input(path, MOST_TENSOR_FILE_BYTES, within=path.parent) as file:
        return _description(file)


def _is_as_described(path: Path, expected: Any) -> bool:
    """Whether a file is what the manifest says. One of another size is not read to its end."""
    most_bytes = MOST_JSON_BYTES if path.name == _STATE else MOST_TENSOR_FILE_BYTES
    with open_input(path, most_bytes, within=path.parent) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        is_of_size = isinstance(expected, dict) and expected.get("num_bytes") == num_bytes
        return is_of_size and _description(file) == expected


def _description(file: BinaryIO) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    num_bytes = 0
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        num_bytes += len(block)
    return {"num_bytes": num_bytes, "blake2b": digest.hexdigest()}


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
