"""Reads LoRAs of other trainers, in the formats that the family's pipeline understands."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from diffusers.utils import convert_unet_state_dict_to_peft
from peft import LoraConfig
from torch import Tensor

from foretune.choices.adapter import ADAPTER_FILE, PEFT_FILE
from foretune.core.errors import Refused
from foretune.core.tensor_files import require_tensor_file
from foretune.models.adapter_settings import read_config
from foretune.models.adapters import StoredAdapter, read_adapter
from foretune.models.family import Family

_A, _B = ".lora_A.weight", ".lora_B.weight"


def read_lora(family: Family, directory: Path) -> StoredAdapter:
    """Reads a LoRA of the denoiser, without dropout. If its file has no alpha, alpha is the rank."""
    path = _the_file(directory)
    by_pipeline = hasattr(family.pipeline_class(), "lora_state_dict")
    if path.name == PEFT_FILE or not by_pipeline:
        stored = read_adapter(family, directory)
        config, weights = stored.config, stored.weights
    else:
        weights, alphas, settings = _by_pipeline(family, path)
        config = read_config({"peft_type": "LORA", **settings}, path) if settings else _guessed(weights, alphas)
    is_plain = isinstance(config, LoraConfig) and not config.use_dora
    if not is_plain or not weights or any(not name.endswith((_A, _B)) for name in weights):
        raise Refused(f"{path} is not a plain LoRA, which a training adapter must be.")
    config.lora_dropout = 0.0
    return StoredAdapter(config, weights)


def _the_file(directory: Path) -> Path:
    if directory.is_file():
        return directory
    found = sorted(directory.glob("*.safetensors")) if directory.is_dir() else []
    named = [path for path in found if path.name in (ADAPTER_FILE, PEFT_FILE)]
    if len(named or found) != 1:
        raise Refused(f"{directory} holds {len(found)} .safetensors files; expected a folder with one LoRA.")
    return (named or found)[0]


def _by_pipeline(family: Family, path: Path) -> tuple[dict[str, Tensor], dict[str, float], dict[str, Any] | None]:
    """Returns weights and alphas by the denoiser's module names, and the settings if the file has any."""
    require_tensor_file(path)
    # With the shape of a UNet, its loader also understands names that count blocks as the original program does.
    shape = {"unet_config": SimpleNamespace(**family.architecture.denoiser)} if family.facts.is_unet else {}
    state, *between, settings = family.pipeline_class().lora_state_dict(
        str(path.parent),
        weight_name=path.name,
        use_safetensors=True,
        local_files_only=True,
        return_alphas=True,
        return_lora_metadata=True,
        **shape,
    )
    prefix = f"{family.denoiser_part}."
    if foreign := [name for name in state if not name.startswith(prefix)]:
        raise Refused(f"{path} changes more than the denoiser ({foreign[0]}), so it cannot be a training adapter.")
    weights = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    stated: Mapping[str, Any] = between[0] if between and between[0] else {}
    alphas = {name.removeprefix(prefix).removesuffix(".alpha"): float(value) for name, value in stated.items()}
    if not any(name.endswith(_A) for name in weights):
        # UNets' loaders leave the names of tensors to the model.
        weights, alphas = convert_unet_state_dict_to_peft(weights), convert_unet_state_dict_to_peft(alphas)
    return (
        weights,
        {name.removesuffix(_A): alpha for name, alpha in alphas.items()},
        {key.removeprefix(prefix): value for key, value in settings.items()} if settings else None,
    )


def _guessed(weights: dict[str, Tensor], alphas: Mapping[str, float]) -> LoraConfig:
    """Infers the ranks from the shapes; alphas that differ from the rank are multiplied into the weights."""
    ranks = {name.removesuffix(_A): int(tensor.shape[0]) for name, tensor in weights.items() if name.endswith(_A)}
    for module, rank in ranks.items():
        name = module + _B
        if alphas.get(module, rank) != rank and name in weights:
            weights[name] = weights[name] * (alphas[module] / rank)
    usual = Counter(ranks.values()).most_common(1)[0][0] if ranks else 1
    others = {f"^{module}": rank for module, rank in ranks.items() if rank != usual}
    return LoraConfig(
        r=usual, lora_alpha=usual, rank_pattern=others, alpha_pattern=dict(others), target_modules=sorted(ranks)
    )
