"""Adapters on disk. Their configuration is saved with the weights, so that they load without Foretune.

LoRA, DoRA and rsLoRA are saved for the family's pipeline, if it loads adapters; all others in peft's format.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file
from torch import Tensor, nn, uint8

from foretune.choices.adapter import ADAPTER_FILE, PEFT_FILE, PEFT_SETTINGS
from foretune.choices.method import Method
from foretune.choices.model import read_json
from foretune.config.readiness import adapter_files, adapters_read, names_adapter, no_adapter
from foretune.core.errors import Refused, UserError
from foretune.core.input_files import MOST_JSON_BYTES, parse_json, read_bytes
from foretune.hub.adapters import locate_adapter
from foretune.models.adapter_settings import read_config, refuse_code
from foretune.models.family import Family
from foretune.models.tensor_files import open_tensors, read_tensors

ADAPTER_NAME = "default"
_METADATA_KEY = "lora_adapter_metadata"
_PEFT_PREFIX = "base_model.model."
_OF_ADAPTER = re.compile(r"\.(?:lora|hada|lokr|oft)_")


@dataclass(frozen=True)
class StoredAdapter:
    """An adapter read from disk."""

    config: PeftConfig
    weights: dict[str, Tensor]
    """Tensors by peft's names, which begin with the names of the denoiser's modules."""


def loads_by_pipeline(family: Family, config: PeftConfig) -> bool:
    """Whether the pipeline's own loader supports this adapter."""
    return isinstance(config, LoraConfig) and hasattr(family.pipeline_class(), "load_lora_weights")


def adapter_state(denoiser: nn.Module, adapter_name: str = ADAPTER_NAME) -> dict[str, Tensor]:
    """Returns the tensors of an attached adapter under the names used on disk. They share memory with the model."""
    own = {name: tensor for name, tensor in denoiser.state_dict().items() if adapter_name in name.split(".")}
    state: Mapping[str, Tensor] = get_peft_model_state_dict(denoiser, state_dict=own, adapter_name=adapter_name)
    return {name: tensor.detach() for name, tensor in state.items()}


def save_adapter(family: Family, directory: Path, weights: Mapping[str, Tensor], config: PeftConfig) -> Path:
    """Saves an adapter and returns the path of its weights."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = _plain(config)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    if loads_by_pipeline(family, config):
        part = family.denoiser_part
        # Without this metadata, loaders assume that alpha equals the rank, and images differ.
        family.pipeline_class().save_lora_weights(
            directory,
            **{f"{part}_lora_layers": tensors, f"{part}_lora_adapter_metadata": settings},
        )
        return directory / ADAPTER_FILE
    (directory / PEFT_SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    prefixed = {_PEFT_PREFIX + name: tensor for name, tensor in tensors.items()}
    save_file(prefixed, directory / PEFT_FILE, metadata={"format": "pt"})
    return directory / PEFT_FILE


def load_adapter(family: Family, pipeline: Any, directory: Path) -> None:
    """Loads an adapter into a pipeline as any program would: with the pipeline's own loader, or through peft."""
    path = adapter_file(directory)
    denoiser: nn.Module = getattr(pipeline, family.denoiser_part)
    refuse_foreign(family, denoiser, directory)
    if path.name != PEFT_FILE:
        refuse_code(_stored_settings(path, f"{family.denoiser_part}."), path)
        pipeline.load_lora_weights(
            path.parent,
            weight_name=path.name,
            adapter_name=ADAPTER_NAME,
            local_files_only=True,
            use_safetensors=True,
        )
        return
    stored = read_adapter(family, directory)
    # It changes the denoiser in place; the model that it returns is only a wrapper.
    PeftModel.from_pretrained(
        denoiser,
        str(path.parent),
        adapter_name=ADAPTER_NAME,
        autocast_adapter_dtype=False,
    )
    if wrong := sorted(set(stored.weights) ^ set(adapter_state(denoiser))):
        raise UserError(f"{path} does not belong to this model: {wrong[0]} is only in one of them.")


def merge_adapters(denoiser: nn.Module) -> None:
    """Adds attached adapters to the weights of their layers, so that they cost nothing when the model samples."""
    for name, layer in denoiser.named_modules():
        if isinstance(layer, BaseTunerLayer):
            if not isinstance(getattr(layer.get_base_layer(), "weight", None), nn.Parameter):
                raise Refused(
                    f"An adapter cannot be merged into quantised weights ({name}). Leave out one of merge and "
                    "quantize, or export a merged model and quantise that: foretune export RUN --merge"
                )
            layer.merge()


def refuse_foreign(family: Family, denoiser: nn.Module, directory: Path) -> None:
    """Raises if an adapter belongs to another model. Loaders would skip the tensors that do not match, or crash.

    The denoiser may be on meta. Files with tensor names of other trainers are left to the pipeline's loader.
    """
    path = adapter_file(directory)
    by_pipeline = path.name != PEFT_FILE
    if by_pipeline and not hasattr(family.pipeline_class(), "load_lora_weights"):
        raise UserError(f"{path} does not belong to this model: pipelines of {family.name} load no such file.")
    prefix = f"{family.denoiser_part}." if by_pipeline else _PEFT_PREFIX
    modules = dict(denoiser.named_modules())
    with open_tensors(path) as file:
        names = [name for name in sorted(file.keys()) if name.startswith(prefix) and _OF_ADAPTER.search(name)]
        shapes = {name.removeprefix(prefix): file.get_slice(name).get_shape() for name in names}
    foreign = [name for name, shape in shapes.items() if not _has_place(modules, name, shape)]
    if foreign:
        raise UserError(
            f"{path} does not belong to this model: {len(foreign)} of its {len(shapes)} tensors fit none of its "
            f"layers, such as {min(foreign)}. Give the base model that it was trained on."
        )


def _has_place(modules: Mapping[str, nn.Module], name: str, shape: list[int]) -> bool:
    """Whether the layer exists and, for LoRA's two matrices, whether their sizes match."""
    module = modules.get(_OF_ADAPTER.split(name)[0])
    weight = getattr(module, "weight", None)
    if weight is None or not name.endswith((".lora_A.weight", ".lora_B.weight")):
        return module is not None
    return bool(shape[1] == weight.shape[1] if ".lora_A." in name else shape[0] == weight.shape[0])


def read_adapter(family: Family, directory: Path) -> StoredAdapter:
    """Reads an adapter written by `foretune export`."""
    path = adapter_file(directory)
    if path.name == PEFT_FILE:
        settings, described = read_json(path.parent / PEFT_SETTINGS), path.parent / PEFT_SETTINGS
    else:
        settings, described = {"peft_type": "LORA", **read_settings(path, f"{family.denoiser_part}.")}, path
    return StoredAdapter(read_config(settings, described), read_weights(family, directory))


def read_weights(family: Family, directory: Path) -> dict[str, Tensor]:
    """Reads the tensors of an adapter alone, under peft's names."""
    path = adapter_file(directory)
    prefix = _PEFT_PREFIX if path.name == PEFT_FILE else f"{family.denoiser_part}."
    return {name.removeprefix(prefix): tensor for name, tensor in read_tensors(path).items()}


def changes_text_encoders(directory: Path) -> bool:
    """Whether an adapter of another trainer has tensors for text encoders, in diffusers' names or in kohya's."""
    with open_tensors(adapter_file(directory)) as file:
        return any(name.startswith(("text_encoder", "lora_te")) for name in file.keys())  # noqa: SIM118 - not a mapping


def adapter_file(directory: Path) -> Path:
    """Returns the path of an adapter's weights in a folder. A file is its own path, whatever its name."""
    if directory.is_file():
        return directory
    for name in (ADAPTER_FILE, PEFT_FILE):
        if (directory / name).is_file():
            return directory / name
    raise UserError(
        f"{directory} holds no {ADAPTER_FILE} and no {PEFT_FILE}. Run: foretune export RUN --output {directory}"
    )


def read_settings(path: Path, prefix: str) -> dict[str, Any]:
    """Reads rank, alpha and targets from the metadata of an adapter in the pipeline's format."""
    metadata = _stored_settings(path, prefix)
    if not metadata:
        raise UserError(f"{path} has no adapter settings in its metadata, so its alpha is unknown.")
    return metadata


def _stored_settings(path: Path, prefix: str) -> dict[str, Any]:
    """Returns the settings in the metadata of an adapter; none for a file of another trainer."""
    with open_tensors(path) as file:
        stored = (file.metadata() or {}).get(_METADATA_KEY, "{}")
    try:
        metadata = parse_json(stored)
    except ValueError as error:
        raise UserError(f"{path} has adapter settings that are not JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise UserError(f"{path} has adapter settings that are {type(metadata).__name__}, not an object.")
    return {key.removeprefix(prefix): value for key, value in metadata.items()}


def checksums_of_read(method: Method) -> dict[str, str]:
    """Returns a content checksum of each adapter that an experiment reads, by its configuration key."""
    return {key: _checksum(key, asked) for key, asked in adapters_read(method).items()}


def _checksum(key: str, asked: str) -> str:
    """Hashes tensors and settings, because the bytes of a file also depend on the order of its header."""
    if not names_adapter(asked):
        raise Refused(no_adapter(key, Path(asked)))
    paths = adapter_files(locate_adapter(asked).path)
    digest = sha256()
    for path in paths:
        with open_tensors(path) as file:
            digest.update(json.dumps(file.metadata() or {}, sort_keys=True).encode())
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name).contiguous()
                digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
                digest.update(tensor.flatten().view(uint8).numpy().tobytes())
    settings = paths[0].parent / PEFT_SETTINGS
    if settings.is_file():
        digest.update(read_bytes(settings, MOST_JSON_BYTES))
    return digest.hexdigest()[:16]


def _plain(config: PeftConfig) -> dict[str, Any]:
    """Returns the settings for JSON, with sets sorted, so that equal adapters are equal files."""
    settings = config.to_dict()
    return {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
