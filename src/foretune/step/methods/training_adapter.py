"""A frozen LoRA that is active while another adapter trains, and inactive for sampling.

It wraps the base layers first, so that the trained weights have the same names with and without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from foretune.core.errors import Refused
from foretune.models.adapters import ADAPTER_NAME
from foretune.models.family import Family
from foretune.models.foreign_lora import read_lora

TRAINING_ADAPTER = "training_adapter"


@torch.no_grad()
def attach_training_adapter(family: Family, denoiser: nn.Module, directory: Path) -> None:
    """Attaches a frozen LoRA to a denoiser without adapters. On meta only its shapes are set."""
    try:
        stored = read_lora(family, directory)
    except Refused as refusal:
        raise Refused(f"method.training_adapter: {refusal}") from refusal
    modules = dict(denoiser.named_modules())
    for name in stored.weights:
        module = name.rpartition(".lora_")[0]
        if not isinstance(modules.get(module), (nn.Linear, nn.Conv2d)):
            raise Refused(
                f"method.training_adapter: {directory} is for another model: no layer of this {family.name} model is "
                f"named {module!r}."
            )
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(stored.config, denoiser, adapter_name=TRAINING_ADAPTER, state_dict=stored.weights)
    # Otherwise peft treats the next adapter as another one with this configuration.
    del denoiser.peft_config
    denoiser.requires_grad_(requires_grad=False)
    dtype = _usual_dtype(denoiser)
    for name, tensor in stored.weights.items():
        parameter = denoiser.get_parameter(name.removesuffix("weight") + f"{TRAINING_ADAPTER}.weight")
        if parameter.shape != tensor.shape:
            raise Refused(
                f"method.training_adapter: {directory} is for another model: {name} is of shape {list(tensor.shape)} "
                f"there and {list(parameter.shape)} here."
            )
        parameter.data = parameter.data.to(dtype)
        if not parameter.is_meta:
            parameter.copy_(tensor)


def switch_training_adapter(denoiser: nn.Module, *, on: bool) -> None:
    """Activates or deactivates the training adapter; the trained one stays active. Does nothing if there is none."""
    for layer in denoiser.modules():
        if isinstance(layer, LoraLayer) and TRAINING_ADAPTER in layer.lora_A:
            trained = [ADAPTER_NAME] if ADAPTER_NAME in layer.lora_A else []
            # peft's own switch would also change what is trained. DoRA scales what precedes it, so it goes first.
            layer._active_adapter = [*trained, TRAINING_ADAPTER] if on else trained


@contextmanager
def without_training_adapter(denoiser: nn.Module) -> Iterator[None]:
    """Deactivates the training adapter in this context: the model as users of the export have it."""
    switch_training_adapter(denoiser, on=False)
    try:
        yield
    finally:
        switch_training_adapter(denoiser, on=True)


def _usual_dtype(denoiser: nn.Module) -> torch.dtype:
    """Returns the dtype of most frozen weights that are not quantised."""
    sizes: dict[torch.dtype, int] = {}
    for name, parameter in denoiser.named_parameters():
        if parameter.is_floating_point() and f".{TRAINING_ADAPTER}." not in name:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])
