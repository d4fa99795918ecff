"""Settings and columns made by hand: metrics are asked without a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from foretune.choices.quantize import Quantize
from foretune.data.buckets import Bucket
from foretune.quality.evidence import SampledEvidence
from foretune.quality.extractors import PooledPixels
from foretune.quality.request import EvaluationRequest
from foretune.quality.setting import Setting
from foretune.training.sampling import Pixels, SampleRequest
from foretune.training.sampling_setup import SamplingSetup


@dataclass(frozen=True)
class MadeData:
    """Data without a source."""

    training_images: Sequence[Pixels] = ()
    held_out_images: Sequence[Pixels] = ()
    is_shapes: bool = False
    style: str | None = None

    @property
    def train(self) -> range:
        return range(len(self.training_images))

    @property
    def held_out(self) -> range:
        return range(len(self.held_out_images))


class MadeSetting(Setting):
    """A setting of a model that takes text, without the model."""

    has_text = True

    @cached_property
    def extractor(self) -> PooledPixels:
        return PooledPixels()


def made_setting(
    *,
    data: MadeData | None = None,
    prompts: Sequence[str] = ("",),
    size_px: int = 32,
    num_frames: int | None = None,
    **request: Any,
) -> Setting:
    """The setting of an evaluation with these data."""
    asked = EvaluationRequest(**request)
    return MadeSetting(
        request=asked,
        subject=cast(Any, None),
        sampling=SampleRequest(
            prompts=tuple(prompts),
            seed=0,
            num_inference_steps=2,
            size=Bucket(size_px, size_px, num_frames),
            num_text_tokens=8,
        ),
        data=cast(Any, data),
        setup=SamplingSetup(device=torch.device("cpu"), precision="fp32", quantize=Quantize(), vae_tiling=False),
    )


def noise_images(num: int, size_px: int = 32, seed: int = 0) -> list[Pixels]:
    """Images of independent random pixels in [0, 1]."""
    return list(np.random.default_rng(seed).random((num, size_px, size_px, 3), dtype=np.float32))


def smooth_images(num: int, size_px: int = 32, seed: int = 0) -> list[Pixels]:
    """Images whose neighbouring pixels resemble each other: random colours at the corners, mixed between."""
    rng = np.random.default_rng(seed)
    across = np.linspace(0, 1, size_px, dtype=np.float32)
    down, right = across[:, None, None], across[None, :, None]
    images = []
    for _ in range(num):
        a, b, c, d = rng.random((4, 3), dtype=np.float32)
        images.append((1 - down) * ((1 - right) * a + right * b) + down * ((1 - right) * c + right * d))
    return images


def in_groups(images: Sequence[Pixels], num_seeds: int) -> SampledEvidence:
    """A column with these samples, so many of each prompt."""
    starts = range(0, len(images), num_seeds)
    return SampledEvidence(samples=tuple(tuple(images[start : start + num_seeds]) for start in starts))


def with_denoised(images: Sequence[Pixels], *levels: float) -> SampledEvidence:
    return replace(SampledEvidence(), denoised={level: tuple(images) for level in levels})
