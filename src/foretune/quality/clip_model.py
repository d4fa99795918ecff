"""A CLIP model: embeds images and captions in one space."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.quality.vision import VisionModel, open_vision
from foretune.training.sampling import Pixels


class Clip:
    """A CLIP model with its tokenizer."""

    def __init__(self, vision: VisionModel, tokenizer: Any) -> None:
        self._vision, self._tokenizer = vision, tokenizer

    @torch.no_grad()
    def scores(self, images: Sequence[Pixels], prompt: str) -> list[float]:
        """Returns 100 times the cosine similarity of each image and the prompt, at least 0."""
        model = self._vision.model
        tokens = self._tokenizer([prompt], return_tensors="pt", truncation=True).to(self._vision.device)
        text = clip_text_features(model, tokens)
        found: list[float] = []
        for batch in self._vision.batches(images):
            cosine = nn.functional.cosine_similarity(clip_image_features(model, batch), text)
            found += (100 * cosine).clamp(min=0).tolist()
        return found


def open_clip(where: str, device: torch.device) -> Clip:
    """Loads a CLIP model from a folder or the Hub."""
    from transformers import AutoTokenizer, CLIPModel

    vision = open_vision(where, CLIPModel, device, f"foretune evaluate --clip {where}")
    folder = Path(where).expanduser()
    return Clip(vision, AutoTokenizer.from_pretrained(folder if folder.is_dir() else where))


def clip_image_features(model: Any, batch: Tensor) -> Tensor:
    """Returns the projected embedding of images; releases of transformers wrap it differently."""
    answer = model.get_image_features(pixel_values=batch)
    features: Tensor = answer if isinstance(answer, Tensor) else answer.pooler_output
    return features


def clip_text_features(model: Any, tokens: Any) -> Tensor:
    """Returns the projected embedding of captions."""
    answer = model.get_text_features(**tokens)
    features: Tensor = answer if isinstance(answer, Tensor) else answer.pooler_output
    return features
