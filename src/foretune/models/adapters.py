"""Adapters on disk, in the layout the family's pipeline loads; alpha and targets travel with the weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foretune.core.errors import UserError
from foretune.models.family import Family

ADAPTER_NAME = "default"
ADAPTER_FILE = "pytorch_lora_weights.safetensors"
_METADATA_KEY = "lora_adapter_metadata"


def save_adapter(family: Family, directory: Path, weights: Mapping[str, Tensor], config: LoraConfig) -> Path:
    """Writes an adapter; the keys carry the denoiser's part name, the settings are in the file's metadata."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = _plain(config)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    pipeline = family.pipeline_class()
    if hasattr(pipeline, "save_lora_weights"):
        part = family.denoiser_part
        # Without the settings a reader takes alpha to be the rank, and computes other images.
        pipeline.save_lora_weights(
            directory,
            **{f"{part}_lora_layers": tensors, f"{part}_lora_adapter_metadata": settings},
        )
    else:
        prefixed = {f"{family.denoiser_part}.{name}": tensor for name, tensor in tensors.items()}
        metadata = {f"{family.denoiser_part}.{key}": value for key, value in settings.items()}
        save_file(prefixed, directory / ADAPTER_FILE, metadata={_METADATA_KEY: json.dumps(metadata)})
    return directory / ADAPTER_FILE


def load_adapter(family: Family, pipeline: Any, directory: Path) -> None:
    """Puts an adapter into a pipeline: by its own loader where it has one, through peft where it has none."""
    path = directory / ADAPTER_FILE
    if not path.is_file():
        raise UserError(f"{directory} holds no {ADAPTER_FILE}. Type: foretune export RUN --output {directory}")
    if hasattr(pipeline, "load_lora_weights"):
        pipeline.load_lora_weights(
            directory, weight_name=ADAPTER_FILE, adapter_name=ADAPTER_NAME, local_files_only=True
        )
        return
    denoiser: nn.Module = getattr(pipeline, family.denoiser_part)
    prefix = f"{family.denoiser_part}."
    weights = {name.removeprefix(prefix): tensor for name, tensor in load_file(path).items()}
    inject_adapter_in_model(LoraConfig(**read_settings(path, prefix)), denoiser, adapter_name=ADAPTER_NAME)
    result = set_peft_model_state_dict(denoiser, weights, adapter_name=ADAPTER_NAME)
    if result.unexpected_keys:
        raise UserError(f"{path} does not belong to this model: {result.unexpected_keys[:3]} are unknown to it.")


def read_settings(path: Path, prefix: str) -> dict[str, Any]:
    """Rank, alpha and targets as they stand in the adapter file."""
    with safe_open(path, framework="pt") as file:
        metadata = json.loads((file.metadata() or {}).get(_METADATA_KEY, "{}"))
    if not metadata:
        raise UserError(f"{path} has no adapter settings in its metadata, so its alpha is unknown.")
    return {key.removeprefix(prefix): value for key, value in metadata.items()}


def _plain(config: LoraConfig) -> dict[str, Any]:
    """The settings as JSON holds them: sets sorted, so that the same adapter is the same file."""
    settings = config.to_dict()
    return {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
