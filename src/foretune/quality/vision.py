"""Vision models from a folder or the Hub, whose weights no package ships."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.choices.model import read_json
from foretune.core.errors import UserError
from foretune.models.plain_folder import require_plain
from foretune.quality.evidence import as_batch
from foretune.training.sampling import Pixels

# Normalisation of OpenAI's CLIP, which most of its descendants use.
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_AT_ONCE = 32


@dataclass(frozen=True)
class VisionModel:
    """A model with its image preprocessing."""

    model: Any
    size_px: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: torch.device

    def batches(self, images: Sequence[Pixels]) -> list[Tensor]:
        """Returns images resized, normalised and on the device, in small batches."""
        mean = torch.tensor(self.mean).view(1, 3, 1, 1)
        std = torch.tensor(self.std).view(1, 3, 1, 1)
        parts = []
        for start in range(0, len(images), _AT_ONCE):
            batch = as_batch(images[start : start + _AT_ONCE])
            resized = nn.functional.interpolate(
                batch, size=(self.size_px, self.size_px), mode="bicubic", antialias=True, align_corners=False
            ).clamp(0, 1)
            parts.append(((resized - mean) / std).to(self.device))
        return parts


def open_vision(where: str, loader: Any, device: torch.device, option: str) -> VisionModel:
    """Loads a transformers model; `option` is what the user typed, for the error message."""
    folder = Path(where).expanduser()
    if folder.is_dir():
        require_plain(folder)
    try:
        model = loader.from_pretrained(folder if folder.is_dir() else where, use_safetensors=True)
        side = _image_size(model.config)
    except Exception as error:  # all failures of the Hub or a folder get the same advice and include the message
        first = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise UserError(
            f"{option}: {where} could not be loaded ({type(error).__name__}: {first}). These weights are in no "
            "package: give a folder that holds config.json and model.safetensors, or a hub id such as "
            "openai/clip-vit-base-patch32 where there is a network."
        ) from error
    mean, std = _normalisation(folder / "preprocessor_config.json")
    return VisionModel(model.requires_grad_(requires_grad=False).eval().to(device), side, mean, std, device)


def _image_size(config: Any) -> int:
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    if isinstance(size, list | tuple):
        size = size[0]
    if not isinstance(size, int):
        raise TypeError("its configuration has no image_size, so it is not an image model")
    return size


def _normalisation(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if path.is_file():
        said = read_json(path)
        if "image_mean" in said and "image_std" in said:
            return tuple(said["image_mean"]), tuple(said["image_std"])
    return _CLIP_MEAN, _CLIP_STD
