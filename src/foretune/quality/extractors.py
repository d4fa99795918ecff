"""Feature extractors for distances between sets of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from foretune.core.errors import Refused
from foretune.models.trainable import TrainableFamily
from foretune.quality.clip_model import clip_image_features
from foretune.quality.evidence import as_batch
from foretune.quality.held_out import in_pieces
from foretune.quality.vision import VisionModel, open_vision
from foretune.training.sampling import Pixels

# Each latent channel is averaged over the quarters of the image: more features would need more samples, fewer would
# lose all positions.
_POOLED = 2
_POOLED_PIXELS = 4
_AT_ONCE = 32
_KNOWN = "vae, pixels, clip:FOLDER_OR_HUB_ID, dino:FOLDER_OR_HUB_ID"


class Extractor(Protocol):
    """Extracts features of images."""

    @property
    def num_features(self) -> int:
        """Number of features per image."""

    def features(self, images: Sequence[Pixels]) -> Tensor:
        """Returns features (N, num_features), on the CPU."""


@dataclass(frozen=True)
class PooledPixels:
    """Mean colours of parts of the image: needs no weights, and captures little."""

    num_features = 3 * _POOLED_PIXELS**2

    def features(self, images: Sequence[Pixels]) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(as_batch(images), _POOLED_PIXELS).flatten(1)


@dataclass(frozen=True)
class PooledLatents:
    """The model's own latents, averaged over the quarters of the image."""

    family: TrainableFamily
    vae: Any
    device: torch.device

    @property
    def num_features(self) -> int:
        return int(self.vae.config.latent_channels) * _POOLED**2

    @torch.no_grad()
    def features(self, images: Sequence[Pixels]) -> Tensor:
        pooled = []
        for batch in in_pieces(images, _AT_ONCE):
            moments = self.family.encode_images(self.vae, batch.to(self.device))
            mean, _ = moments.chunk(2, dim=1)
            pooled.append(nn.functional.adaptive_avg_pool2d(mean, _POOLED).flatten(1).cpu())
        return torch.cat(pooled)


@dataclass(frozen=True)
class Embedding:
    """The embedding of a large vision model."""

    vision: VisionModel
    num_features: int
    is_clip: bool

    @torch.no_grad()
    def features(self, images: Sequence[Pixels]) -> Tensor:
        return torch.cat([self._embedded(batch).float().cpu() for batch in self.vision.batches(images)])

    def _embedded(self, batch: Tensor) -> Tensor:
        if self.is_clip:
            return clip_image_features(self.vision.model, batch)
        answer: Tensor = self.vision.model(pixel_values=batch).pooler_output
        return answer


def check_extractor(asked: str) -> None:
    """Raises if the name is not a valid extractor, before anything is loaded."""
    kind, _, where = asked.partition(":")
    if kind == "inception":
        raise Refused(
            f"foretune evaluate --extractor {asked}: Inception's weights come as a pickle, which can run code when it "
            "is loaded, and are refused. Nearest: foretune evaluate RUN --extractor dino:facebook/dinov2-base, or a "
            f"folder of it. Known: {_KNOWN}"
        )
    if not (asked in ("vae", "pixels") or (kind in ("clip", "dino") and where)):
        raise Refused(f"foretune evaluate --extractor {asked}: there is no such extractor. Known: {_KNOWN}")


def open_extractor(asked: str, family: TrainableFamily, folder: Path, device: torch.device) -> Extractor:
    """Opens the extractor that `--extractor` names."""
    check_extractor(asked)
    kind, _, where = asked.partition(":")
    if kind == "clip":
        from transformers import CLIPModel

        vision = open_vision(where, CLIPModel, device, f"foretune evaluate --extractor {asked}")
        return Embedding(vision, int(vision.model.config.projection_dim), is_clip=True)
    if kind == "dino":
        from transformers import AutoModel

        vision = open_vision(where, AutoModel, device, f"foretune evaluate --extractor {asked}")
        return Embedding(vision, int(vision.model.config.hidden_size), is_clip=False)
    if kind == "vae" and family.has_latents:
        return PooledLatents(family, family.load_vae(folder, torch.float32).to(device), device)
    # A model without an autoencoder has only pixels.
    return PooledPixels()
