"""Where Foretune reads files that others may have written: what lies there normally, and what reads it."""

import gzip
import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.torch import save_file

from foretune.analyse.inference_data import inference_in
from foretune.analyse.run_data import gather
from foretune.analyse.trace_events import read_trace
from foretune.choices.model import shipped_folder
from foretune.config.from_accelerate.importing import translate as translate_accelerate
from foretune.config.from_trainers.importing import translate as translate_trainer
from foretune.config.reading import read_experiment
from foretune.core.errors import UserError
from foretune.core.input_files import read_bytes
from foretune.core.values.base import WrongFormat
from foretune.core.values.packed_trace import unpack
from foretune.data.cache import DamagedEntry, TensorCache
from foretune.data.memo import Memo, stamp
from foretune.data.sources.cifar10_batches import Cifar10Batches
from foretune.models.adapters import read_adapter
from foretune.models.locating import open_family
from foretune.record.checking import check_run
from foretune.record.device_profiles import stored_profiles
from foretune.trace.shipped import SUFFIX
from foretune.trace.shipped import folder as shipped_traces
from foretune.training.checkpoint_files import Checkpoint, Shard, write_manifest, write_tensors
from foretune.training.checkpoints import CheckpointStore
from foretune.training.for_tools.import_file import import_file

_KEY = "ab" * 20
_MOST_TRACE_BYTES = 16 * 2**20
_MOST_SIGNED_BYTES = 2**28
_STEP = 3
_COMPONENTS = ("weights", "optimizer")


@dataclass(frozen=True)
class Place:
    """A file that is replaced, and what then reads it."""

    make: Callable[[Path], Path]
    """Makes what lies there normally in an empty folder; returns the file."""
    read: Callable[[Path], object]
    """Is given the folder. Raises where the file is refused."""
    holds_tensors: bool = False
    is_recreated: bool = False
    """Whether a damaged file is made again instead of refused, because it only saves time."""
    normally_refused_with: str | None = None
    """Words with which what lies there normally is refused after it was read, where it fits nothing here."""
    also_named: tuple[str, ...] = ()
    """Files that the message may name instead: where two of them disagree, either may be the wrong one."""
    after: Callable[[Path], object] = lambda _: None
    """What an attacker does when the file is replaced: a manifest that describes it."""


PLACES: dict[str, Place] = {}


class Faults(Exception):
    """What a check reports."""


# ---- checkpoints


def _checkpoint(folder: Path, name: str) -> Path:
    tensors = {name: {"a": torch.arange(12.0).reshape(3, 4)} for name in _COMPONENTS}
    return CheckpointStore(folder, keep=2).write(Checkpoint(_STEP, tensors, {"scaler": None})) / name


def _sharded(folder: Path, name: str) -> Path:
    path = folder / f"step-{_STEP:09d}"
    path.mkdir()
    shards = {
        f"shard-{number + 1:05d}.safetensors": {"weights/a": Shard(torch.ones(2, 3), (2 * number, 0))}
        for number in range(2)
    }
    write_manifest(path, _STEP, {}, write_tensors(path, shards))
    return path / name


def _sign(folder: Path) -> None:
    """Describes the files of a checkpoint as they are now: whoever replaces one can do this."""
    path = folder / f"step-{_STEP:09d}"
    manifest = json.loads((path / "manifest.json").read_bytes())
    for file in path.iterdir():
        if file.name == "manifest.json" or not stat.S_ISREG(file.lstat().st_mode):
            continue
        size = file.stat().st_size
        digest = hashlib.blake2b(file.read_bytes() if size < _MOST_SIGNED_BYTES else b"", digest_size=16).hexdigest()
        manifest["files"][file.name] = {"num_bytes": size, "blake2b": digest}
    (path / "manifest.json").write_text(json.dumps(manifest))


def _read_checkpoint(folder: Path) -> None:
    CheckpointStore(folder, keep=2).read_newest(_COMPONENTS)


def _read_sharded(folder: Path) -> None:
    CheckpointStore(folder, keep=2).read_newest(("weights",))


for _name in ("weights.safetensors", "optimizer.safetensors"):
    PLACES[f"checkpoint {_name}"] = Place(
        partial(_checkpoint, name=_name), _read_checkpoint, holds_tensors=True, after=_sign
    )
PLACES["checkpoint state.json"] = Place(partial(_checkpoint, name="state.json"), _read_checkpoint, after=_sign)
PLACES["checkpoint manifest.json"] = Place(partial(_checkpoint, name="manifest.json"), _read_checkpoint)
PLACES["sharded checkpoint"] = Place(
    partial(_sharded, name="shard-00002.safetensors"), _read_sharded, holds_tensors=True, after=_sign
)
PLACES["sharded checkpoint .metadata"] = Place(partial(_sharded, name=".metadata"), _read_sharded, is_recreated=True)


# ---- caches


def _cache_entry(folder: Path) -> Path:
    cache = TensorCache(folder)
    cache.put(_KEY, {"latents": torch.ones(4)})
    return cache.path(_KEY)


def _read_cache(folder: Path) -> None:
    cache = TensorCache(folder)
    path = cache.path(_KEY)
    is_there = cache.has(_KEY)
    cache.get(_KEY)
    assert is_there, f"{path} is read, though it counts as missing"


def _memo(folder: Path) -> Path:
    path = folder / "components.json"
    (folder / "a").write_bytes(b"x")
    os.utime(folder / "a", (1e9, 1e9))
    memo = Memo(path)
    memo.store("a", stamp([folder / "a"]), "known")
    memo.save()
    return path


def _read_memo(folder: Path) -> None:
    memo = Memo(folder / "components.json")
    if memo.recall("a", stamp([folder / "a"])) != "known":
        raise WrongFormat("it counts as missing")


def _packed_trace(folder: Path) -> Path:
    path = folder / f"a{SUFFIX}"
    path.write_bytes(
        min(Path(str(shipped_traces())).glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_size).read_bytes()
    )
    return path


PLACES["cache entry"] = Place(_cache_entry, _read_cache, holds_tensors=True)
PLACES["memo of a cache"] = Place(_memo, _read_memo, is_recreated=True)
PLACES["recorded trace"] = Place(
    _packed_trace,
    lambda folder: unpack(read_bytes(folder / f"a{SUFFIX}", _MOST_TRACE_BYTES)),
    is_recreated=True,
)


# ---- runs


_FAULTS_BEFORE: set[str] = set()
"""What `check` reports of a run that was never trained; anything else comes from the hostile file."""


def _run(folder: Path, name: str) -> Path:
    from tests.reports.whole_runs import whole_run

    whole_run(folder / "a", num_steps=4)
    _FAULTS_BEFORE.update(check_run(folder / "a").faults)
    return folder / "a" / name


def _read_run(folder: Path) -> None:
    gather([folder / "a"])
    if faults := set(check_run(folder / "a").faults) - _FAULTS_BEFORE:
        raise Faults("; ".join(sorted(faults)))


for _name in ("experiment.yaml", "record.json", "plan.json", "environment.json", "events.jsonl"):
    PLACES[f"run {_name}"] = Place(partial(_run, name=_name), _read_run, also_named=("record.json",))


def _profile_trace(folder: Path, name: str) -> Path:
    content = json.dumps({"traceEvents": [], "foretune": {}}).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder / name


def _read_profile_trace(folder: Path, name: str) -> None:
    read_trace(folder / name)


for _name in ("a.pt.trace.json", "a.pt.trace.json.gz"):
    PLACES[_name] = Place(partial(_profile_trace, name=_name), partial(_read_profile_trace, name=_name))


def _device_profile(folder: Path) -> Path:
    frozen = Path(__file__).parents[1] / "core" / "frozen" / "DeviceProfile-v1.json"
    (folder / "cpu.json").write_bytes(frozen.read_bytes())
    return folder / "cpu.json"


def _read_device_profile(folder: Path) -> None:
    # Files that are skipped are listed with the reason beside their path.
    problems = [f"{stored.path}: {stored.problem}" for stored in stored_profiles(folder) if stored.problem]
    if problems:
        raise Faults("; ".join(problems))
    if not list(stored_profiles(folder)):
        raise Faults("cpu.json is not there")


PLACES["device profile"] = Place(_device_profile, _read_device_profile)


# ---- adapters and models


def _adapter(folder: Path, name: str) -> Path:
    metadata = {"lora_adapter_metadata": json.dumps({"transformer.r": 2, "transformer.target_modules": ["a"]})}
    save_file({"transformer.a.lora_A.weight": torch.ones(2, 2)}, folder / name, metadata=metadata)
    return folder / name


def _peft_adapter(folder: Path) -> Path:
    save_file({"base_model.model.a.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "target_modules": ["a"]}))
    return folder / "adapter_config.json"


def _read_adapter(folder: Path) -> None:
    read_adapter(SimpleNamespace(denoiser_part="transformer"), folder)  # type: ignore[arg-type]


PLACES["adapter"] = Place(partial(_adapter, name="pytorch_lora_weights.safetensors"), _read_adapter, holds_tensors=True)
PLACES["adapter settings"] = Place(_peft_adapter, _read_adapter)


def _single_file(folder: Path) -> Path:
    base = shipped_folder("foretune-shapes") / "transformer" / "diffusion_pytorch_model.safetensors"
    (folder / "model.safetensors").write_bytes(base.read_bytes())
    return folder / "model.safetensors"


def _read_single_file(folder: Path) -> None:
    base = shipped_folder("foretune-shapes")
    import_file(folder / "model.safetensors", open_family(base), base, folder / "output")


PLACES["single-file checkpoint"] = Place(
    _single_file, _read_single_file, holds_tensors=True, normally_refused_with="holds no flux model like the base"
)


# ---- data and settings


def _cifar_batch(folder: Path) -> Path:
    import pickle

    content = {b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": [3]}
    (folder / "data_batch_1").write_bytes(pickle.dumps(content, protocol=2))
    return folder / "data_batch_1"


PLACES["batch of CIFAR-10"] = Place(_cifar_batch, lambda folder: Cifar10Batches(folder, folder))


def _experiment(folder: Path) -> Path:
    (folder / "experiment.yaml").write_text("model: foretune-shapes\ndata: {kind: shapes}\ntrain: {steps: 1}\n")
    return folder / "experiment.yaml"


PLACES["experiment file"] = Place(_experiment, lambda folder: read_experiment(folder / "experiment.yaml"))


def _trainer_config(folder: Path) -> Path:
    config = {"model_type": "lora", "pretrained_model_name_or_path": "a/b", "--model_family": "flux"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def _accelerate_config(folder: Path) -> Path:
    (folder / "default_config.yaml").write_text("compute_environment: LOCAL_MACHINE\nnum_processes: 1\n")
    return folder / "default_config.yaml"


PLACES["configuration of another trainer"] = Place(
    _trainer_config, lambda folder: translate_trainer(folder / "config.json")
)
PLACES["configuration of accelerate"] = Place(
    _accelerate_config, lambda folder: translate_accelerate(folder / "default_config.yaml", "x")
)


def _inference(folder: Path) -> Path:
    (folder / "inference.json").write_text("{}")
    return folder / "inference.json"


PLACES["results of an inference bench"] = Place(_inference, inference_in, is_recreated=True)
REFUSALS = (UserError, Faults, DamagedEntry)
