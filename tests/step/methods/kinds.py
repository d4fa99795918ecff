"""One adapter of each kind, small enough for every tiny model; alpha differs from the rank, so that it counts."""

from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from foretune.models.adapters import save_adapter
from foretune.step.methods.adapter import AppliedAdapter
from tests.step.small_steps import SmallStep, small_step

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"kind": "lora", "rank": 4, "alpha": 10},
    "dora": {"kind": "dora", "rank": 4, "alpha": 10},
    "rslora": {"kind": "rslora", "rank": 4, "alpha": 10},
    "loha": {"kind": "loha", "rank": 4, "alpha": 10},
    "lokr": {"kind": "lokr", "rank": 2, "alpha": 5},
    "lokr whole": {"kind": "lokr", "rank": 2, "alpha": 5, "factor": 4, "full_matrix": True},
    "oft": {"kind": "oft", "block_size": 8},
}


def adapter_of(small: SmallStep) -> AppliedAdapter:
    assert isinstance(small.method, AppliedAdapter)
    return small.method


@torch.no_grad()
def disturb(method: AppliedAdapter, seed: int = 3) -> None:
    """Weights as after some training: none is zero any more."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in method.trained().values():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


def written(folder: Path, directory: Path, method: dict[str, Any], seed: int = 3) -> dict[str, torch.Tensor]:
    """A folder with an adapter of this kind for the model in another folder; returns its weights."""
    made = adapter_of(small_step(folder, method))
    disturb(made, seed)
    save_adapter(made.family, directory, made.weights(), made.peft_config())
    return {name: tensor.clone() for name, tensor in made.weights().items()}


@torch.no_grad()
def merge(method: AppliedAdapter) -> None:
    """Merges every layer into the base, rounded once to its dtype, and removes the adapter."""
    layers = {name: layer for name, layer in method.denoiser.named_modules() if isinstance(layer, BaseTunerLayer)}
    for name, layer in layers.items():
        base: nn.Module = layer.get_base_layer()
        for key, tensor in method.merged_layer(name, dict(base.named_parameters())).items():
            old = base.get_parameter(key)
            base.register_parameter(key, nn.Parameter(tensor.to(old.dtype), requires_grad=False))
        method.denoiser.set_submodule(name, base)
