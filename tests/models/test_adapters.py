"""Adapter files: alpha and targets travel with the weights, and what does not belong is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from foretune.core.errors import UserError
from foretune.models import Family
from foretune.models.adapters import ADAPTER_FILE, ADAPTER_NAME, load_adapter, read_settings, save_adapter
from foretune.models.locating import open_family

TinyPipeline = Callable[..., Path]

RANK, ALPHA = 2, 5


def adapted(family: Family, folder: Path) -> tuple[Any, LoraConfig]:
    """A denoiser with an adapter that changes what it computes."""
    denoiser: Any = family.load_denoiser(folder, torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(family.adapter_targets))
    inject_adapter_in_model(config, denoiser, adapter_name=ADAPTER_NAME)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in denoiser.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return denoiser, config


def written(family: Family, folder: Path, directory: Path) -> dict[str, torch.Tensor]:
    denoiser, config = adapted(family, folder)
    weights: dict[str, torch.Tensor] = get_peft_model_state_dict(denoiser, adapter_name=ADAPTER_NAME)
    assert save_adapter(family, directory, weights, config) == directory / ADAPTER_FILE
    return weights


@pytest.mark.parametrize("name", ["ddpm", "sd3", "flux"])
def test_what_is_written_is_what_is_loaded(name: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    weights = written(family, folder, tmp_path)
    prefix = f"{family.denoiser_part}."
    assert set(load_file(tmp_path / ADAPTER_FILE)) == {prefix + key for key in weights}
    settings = read_settings(tmp_path / ADAPTER_FILE, prefix)
    assert (settings["r"], settings["lora_alpha"]) == (RANK, ALPHA)
    pipeline = family.load_pipeline(folder, torch.float32)
    load_adapter(family, pipeline, tmp_path)
    denoiser = getattr(pipeline, family.denoiser_part)
    found = get_peft_model_state_dict(denoiser, adapter_name=ADAPTER_NAME)
    assert set(found) == set(weights)
    assert all(torch.equal(found[key], weights[key]) for key in weights)
    scalings = {module.scaling[ADAPTER_NAME] for module in denoiser.modules() if hasattr(module, "scaling")}
    assert scalings == {ALPHA / RANK}


def test_the_same_adapter_is_the_same_file(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("ddpm")
    family = open_family(folder)
    for name in ("one", "two"):
        written(family, folder, tmp_path / name)
    assert (tmp_path / "one" / ADAPTER_FILE).read_bytes() == (tmp_path / "two" / ADAPTER_FILE).read_bytes()


def test_folder_without_adapter(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(UserError, match=f"holds no {ADAPTER_FILE}"):
        load_adapter(open_family(tiny_pipeline("ddpm")), None, tmp_path)


def test_adapter_without_settings(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    save_file({"unet.some.lora_A.weight": torch.zeros(1)}, tmp_path / ADAPTER_FILE)
    with pytest.raises(UserError, match="its alpha is unknown"):
        read_settings(tmp_path / ADAPTER_FILE, "unet.")


def test_adapter_of_another_model(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("ddpm")
    family = open_family(folder)
    written(family, folder, tmp_path)
    path = tmp_path / ADAPTER_FILE
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors["unet.stranger.to_q.lora_A.weight"] = torch.zeros(RANK, 32)
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(UserError, match="does not belong to this model"):
        load_adapter(family, family.load_pipeline(folder, torch.float32), tmp_path)
