"""Whether images show what their captions say: sampled from a folder, read off the pixels."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from foretune.choices.data import ShapesCaptions
from foretune.core.draws import derive_seed
from foretune.data.shapes_reader import ATTRIBUTES, matches, read_scene
from foretune.data.sources.shapes import captions_shown
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily

_BATCH_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class CaptionCheck:
    """Shares of the images that show what was asked."""

    num_images: int
    num_steps: int
    all_right: float
    """Shape, size, colour and background, all four."""
    by_attribute: dict[str, float]
    shuffled_right: float
    """The same images against each other's captions: what agreement by chance looks like."""

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


def check_captions(
    folder: Path, *, num_images: int, num_steps: int, captions: ShapesCaptions = "unseen", seed: int = 0
) -> CaptionCheck:
    """Of the pipeline in a folder."""
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    return read_captions(family, pipeline, num_images=num_images, num_steps=num_steps, captions=captions, seed=seed)


def read_captions(
    family: TrainableFamily,
    pipeline: Any,
    *,
    num_images: int,
    num_steps: int,
    captions: ShapesCaptions = "unseen",
    seed: int = 0,
) -> CaptionCheck:
    """Goes through the captions in turn, with other noise each time."""
    shown = captions_shown(captions)
    asked = [shown[number % len(shown)] for number in range(num_images)]
    images = sample_captions(family, pipeline, asked, num_steps=num_steps, seed=seed)
    readings = [read_scene(image) for image in images]
    right = [matches(caption, reading) for caption, reading in zip(asked, readings, strict=True)]
    # Captions follow each other by likeness, so that the next one is no harder to meet than one that is drawn by lot.
    others = [matches(caption, reading) for caption, reading in zip(asked[1:] + asked[:1], readings, strict=True)]
    return CaptionCheck(
        num_images=num_images,
        num_steps=num_steps,
        all_right=float(np.mean([all(each.values()) for each in right])),
        by_attribute={name: float(np.mean([each[name] for each in right])) for name in ATTRIBUTES},
        shuffled_right=float(np.mean([all(each.values()) for each in others])),
    )


def sample_captions(
    family: TrainableFamily, pipeline: Any, captions: Sequence[str], *, num_steps: int, seed: int
) -> list[npt.NDArray[np.float32]]:
    """An image of each caption; its noise depends on the seed and on its place in the list alone."""
    images: list[npt.NDArray[np.float32]] = []
    size_px = family.default_resolution_px()
    for first in range(0, len(captions), _BATCH_SIZE):
        part = list(captions[first : first + _BATCH_SIZE])
        generators = [
            torch.Generator("cpu").manual_seed(derive_seed(seed, "sample", first + place)) for place in range(len(part))
        ]
        with torch.no_grad():
            made = pipeline(
                prompt=part,
                height=size_px,
                width=size_px,
                num_inference_steps=num_steps,
                generator=generators,
                output_type="np",
                **family.sampling_arguments(family.own_text_tokens(), None),
            ).images
        images += list(made)
    return images
