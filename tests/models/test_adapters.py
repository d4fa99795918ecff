"""Adapter files: what an adapter was built with travels with its weights, and what does not belong is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, PeftConfig, inject_adapter_in_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from foretune.choices.adapter import ADAPTER_FILE, PEFT_FILE, PEFT_SETTINGS
from foretune.choices.method import Full, Lora
from foretune.core.errors import Refused, UserError
from foretune.models import Family
from foretune.models.adapters import (
    ADAPTER_NAME,
    adapter_state,
    checksums_of_read,
    load_adapter,
    read_adapter,
    read_settings,
    save_adapter,
)
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily

TinyPipeline = Callable[..., Path]

RANK, ALPHA = 2, 5
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
CONFIGS: dict[str, Callable[[], PeftConfig]] = {
    "lora": lambda: LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS),
    "dora": lambda: LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, use_dora=True),
    "rslora": lambda: LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, use_rslora=True),
    "loha": lambda: LoHaConfig(r=RANK, alpha=ALPHA, target_modules=TARGETS),
    "lokr": lambda: LoKrConfig(r=RANK, alpha=ALPHA, decompose_factor=4, target_modules=TARGETS),
    "oft": lambda: OFTConfig(oft_block_size=8, target_modules=TARGETS),
}
CASES = [("flux", kind) for kind in CONFIGS] + [("sd3", "dora"), ("sd3", "oft"), ("ddpm", "lora"), ("ddpm", "lokr")]


def written(family: TrainableFamily, folder: Path, directory: Path, kind: str = "lora") -> tuple[nn.Module, Path]:
    """A denoiser with an adapter that changes what it computes, and the file it was written to."""
    denoiser = family.load_denoiser(folder, torch.float32)
    config = CONFIGS[kind]()
    torch.manual_seed(11)
    inject_adapter_in_model(config, denoiser, adapter_name=ADAPTER_NAME)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in denoiser.named_parameters():
            if f".{ADAPTER_NAME}" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return denoiser.eval(), save_adapter(family, directory, adapter_state(denoiser), config)


def answers(family: Family, denoiser: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    specs = family.conditioning_specs(1, 6)
    conditioning = {name: torch.randn(spec.shape, generator=generator) for name, spec in specs.items()}
    noisy = torch.randn((1, *family.latent_shape(32, 32)), generator=generator)
    with torch.no_grad():
        return family.predict(denoiser, noisy, torch.tensor([500.0]), conditioning, guidance_scale=3.5)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_written_is_what_is_loaded(name: str, kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    trained, path = written(family, folder, tmp_path, kind)
    by_pipeline = name != "ddpm" and kind in ("lora", "dora", "rslora")
    assert path.name == (ADAPTER_FILE if by_pipeline else PEFT_FILE)
    prefix = f"{family.denoiser_part}." if by_pipeline else "base_model.model."
    weights = adapter_state(trained)
    assert set(load_file(path)) == {prefix + key for key in weights}
    pipeline = family.load_pipeline(folder, torch.float32)
    untouched = answers(family, getattr(pipeline, family.denoiser_part))
    load_adapter(family, pipeline, tmp_path)
    denoiser = getattr(pipeline, family.denoiser_part)
    found = adapter_state(denoiser)
    assert set(found) == set(weights)
    assert all(torch.equal(found[key], weights[key]) for key in weights)
    # Settings that were lost would show here: alpha, use_dora, use_rslora, the factor.
    assert torch.equal(answers(family, denoiser), answers(family, trained))
    assert not torch.equal(answers(family, denoiser), untouched)
    stored = read_adapter(family, tmp_path)
    assert stored.config.to_dict() == CONFIGS[kind]().to_dict() | {"inference_mode": stored.config.inference_mode}
    assert all(torch.equal(stored.weights[key], weights[key]) for key in weights)


def test_the_same_adapter_is_the_same_file(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    family = open_family(folder)
    for name in ("one", "two"):
        written(family, folder, tmp_path / name, "lokr")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [PEFT_SETTINGS, PEFT_FILE]
    for name in (PEFT_SETTINGS, PEFT_FILE):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_folder_without_adapter(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(UserError, match=f"holds no {ADAPTER_FILE} and no {PEFT_FILE}"):
        load_adapter(open_family(tiny_pipeline("ddpm")), None, tmp_path)


def test_adapter_without_settings(tmp_path: Path) -> None:
    save_file({"unet.some.lora_A.weight": torch.zeros(1)}, tmp_path / ADAPTER_FILE)
    with pytest.raises(UserError, match="its alpha is unknown"):
        read_settings(tmp_path / ADAPTER_FILE, "unet.")


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize("change", ["one too many", "one too few"])
def test_adapter_of_another_model(change: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("ddpm")
    family = open_family(folder)
    _, path = written(family, folder, tmp_path)
    tensors = load_file(path)
    if change == "one too many":
        tensors["base_model.model.stranger.to_q.lora_A.weight"] = torch.zeros(RANK, 32)
    else:
        tensors.popitem()
    save_file(tensors, path)
    with pytest.raises(UserError, match="does not belong to this model"):
        load_adapter(family, family.load_pipeline(folder, torch.float32), tmp_path)


@pytest.mark.parametrize("name", ["ddpm", "flux"])
def test_content_of_read_adapters_counts_and_their_place_does_not(
    name: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    written(family, folder, tmp_path / "one")
    _, path = written(family, folder, tmp_path / "two")
    here, there = str(tmp_path / "one"), str(tmp_path / "two")
    assert checksums_of_read(Full()) == checksums_of_read(Lora()) == {}
    both = checksums_of_read(Lora(start_from=here, training_adapter=there))
    assert both["start_from"] == both["training_adapter"] == checksums_of_read(Lora(start_from=there))["start_from"]
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    save_file({key: tensor.bfloat16() for key, tensor in tensors.items()}, path, metadata=metadata)
    rounded = checksums_of_read(Lora(start_from=there))["start_from"]
    assert rounded != both["start_from"]
    if name == "ddpm":
        settings = json.loads((tmp_path / "two" / PEFT_SETTINGS).read_text())
        (tmp_path / "two" / PEFT_SETTINGS).write_text(json.dumps({**settings, "lora_alpha": 7}))
    else:
        save_file({key: tensor.bfloat16() for key, tensor in tensors.items()}, path)
    assert checksums_of_read(Lora(start_from=there))["start_from"] != rounded


def test_what_is_to_be_read_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(
        Refused, match=r"method.training_adapter: .*nowhere is neither a repository of the Hub nor a folder"
    ):
        checksums_of_read(Lora(training_adapter=str(tmp_path / "nowhere")))
