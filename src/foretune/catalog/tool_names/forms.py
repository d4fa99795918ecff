"""What another program reads: the form of an adapter's file, and whether it reads a whole model in one file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foretune.catalog.tool_names.layout import OriginalLayout

LOW_RANK = ("lora", "rslora")
LOADED_BY_COMFYUI = (*LOW_RANK, "dora", "loha", "lokr")
"""Kinds of adapters that ComfyUI loads (`comfy/weight_adapter` at acbf08c). Its OFT rotates outputs, peft's inputs."""


@dataclass(frozen=True, kw_only=True)
class AdapterForm:
    """Names of the tensors in an adapter's file, and what the program does not load."""

    program: str
    prefix: str
    keeps_dots: bool
    """Whether names of layers keep their dots; otherwise these are underscores."""
    is_original: bool
    """Whether layers have their original names, not those of diffusers."""
    kinds: tuple[str, ...]
    """Kinds of adapters that it loads."""
    only: tuple[str, ...] = ()
    """Beginnings or parts (`*.attn.`) of diffusers' names of layers that it gives adapters to; empty if to all."""
    renames: tuple[tuple[str, str], ...] = ()
    """Pieces of names that the program spells otherwise than the original."""
    module: str | None = None
    """Module of the program that reads it, for its metadata."""

    def name_of(self, layer: str) -> str:
        """Returns the name that a layer has in the file."""
        for old, new in self.renames:
            layer = layer.replace(old, new)
        return self.prefix + (layer if self.keeps_dots else layer.replace(".", "_"))

    def loads(self, layer: str) -> bool:
        """Whether the program would find a place for an adapter of this layer."""
        return not self.only or any(
            piece[1:] in layer if piece.startswith("*") else layer.startswith(piece) for piece in self.only
        )


def comfyui(*, only: tuple[str, ...] = ()) -> AdapterForm:
    """Returns the form with diffusers' names, which ComfyUI maps to slices of its stacked layers."""
    return AdapterForm(
        program="ComfyUI",
        prefix="transformer.",
        keeps_dots=True,
        is_original=False,
        kinds=LOADED_BY_COMFYUI,
        only=only,
    )


def comfyui_original(*, is_stacked: bool = False, renames: tuple[tuple[str, str], ...] = ()) -> AdapterForm:
    """Returns the form with original names, which ComfyUI reads for every model."""
    kinds = LOADED_BY_COMFYUI if not is_stacked else tuple(kind for kind in LOADED_BY_COMFYUI if kind != "lokr")
    return AdapterForm(
        program="ComfyUI",
        prefix="diffusion_model.",
        keeps_dots=True,
        is_original=True,
        kinds=kinds,
        renames=renames,
    )


def comfyui_unet() -> AdapterForm:
    """Returns the form of UNets, which most programs for Stable Diffusion read."""
    return AdapterForm(
        program="ComfyUI",
        prefix="lora_unet_",
        keeps_dots=False,
        is_original=False,
        kinds=LOADED_BY_COMFYUI,
    )


def kohya(
    program: str,
    *,
    module: str = "networks.lora",
    kinds: tuple[str, ...] = LOW_RANK,
    only: tuple[str, ...] = (),
    is_original: bool = True,
) -> AdapterForm:
    """Returns the form of kohya's trainers; `module` is the one that reads it, as they write it into files."""
    return AdapterForm(
        program=program,
        prefix="lora_unet_",
        keeps_dots=False,
        is_original=is_original,
        kinds=kinds,
        only=only,
        module=module,
    )


def described(base: str | None, architecture: str) -> dict[str, str]:
    """Returns what kohya's trainers write about the base model: its version, and its name in the ModelSpec."""
    return {
        **({"ss_base_model_version": base} if base is not None else {}),
        "modelspec.architecture": f"{architecture}/lora",
    }


def describing(base: str | None, architecture: str) -> Callable[[Mapping[str, Any]], dict[str, str]]:
    """Returns `described` for a family whose models are all described alike."""
    return lambda _: described(base, architecture)


@dataclass(frozen=True)
class FilePart:
    """A part of a pipeline, in a file with the original layout."""

    layout: Callable[[Mapping[str, Any]], OriginalLayout]
    """Of the part's configuration."""
    prefix: str = ""


@dataclass(frozen=True)
class SingleFile:
    """A whole model in one file, as its authors publish it."""

    parts: Mapping[str, FilePart]
    folder: str
    """Where ComfyUI looks for it, below its folder of models."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """What diffusers takes for granted of the denoiser's configuration when it reads such a file."""
