"""Autoencoders and text encoders of the catalogue without their weights, and their forward passes."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import ModelComponent

# Pipelines request the hidden states of every layer, except from T5, which returns its last ones only.
_LAST_STATES_ONLY = frozenset({"T5EncoderModel", "UMT5EncoderModel"})


def component_on_meta(row: ModelComponent, dtype: torch.dtype) -> nn.Module:
    """Builds the real class on meta with its catalogued configuration, with the dtypes that loading would give."""
    model_class: Any = getattr(import_module(row.library), row.class_name)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            config = {key: value for key, value in row.config.items() if not key.startswith("_")}
            if row.library == "transformers":
                module: nn.Module = model_class(model_class.config_class(**config))
            else:
                module = model_class(**config)
    finally:
        torch.set_default_dtype(previous)
    # Transformers keeps these modules in fp32 for fp16 only.
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ()) if dtype == torch.float16 else set()
    for name, parameter in module.named_parameters():
        if kept & set(name.split(".")):
            parameter.data = parameter.data.float()
    return module.eval()


def encode(vae: Any, pixels: Tensor) -> Tensor:
    """Returns the autoencoder's latent distribution for images or videos, before sampling."""
    said = vae.encode(pixels)
    return said.latent if hasattr(said, "latent") else said.latent_dist.parameters  # type: ignore[no-any-return]


def decode(vae: Any, latents: Tensor) -> Tensor:
    """Decodes latents to pixels in [0, 1], as a pipeline does."""
    # An autoencoder conditioned on the noise level gets its pipeline's default.
    conditioning = {"temb": torch.full((len(latents),), 0.05)} if vae.config.get("timestep_conditioning") else {}
    pixels: Tensor = vae.decode(latents, return_dict=False, **conditioning)[0]
    return (pixels * 0.5 + 0.5).clamp(0, 1)


def encode_tokens(encoder: Any, tokens: Tensor) -> Any:
    """Runs a text encoder on token ids and returns as many hidden states as pipelines request."""
    needs_all = type(encoder).__name__ not in _LAST_STATES_ONLY
    return encoder(tokens, output_hidden_states=needs_all)
