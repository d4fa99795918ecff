"""The inputs of one forward pass, and how samples are assembled into them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretune.accelerator.copies import PageLockable, moved
from foretune.data.buckets import Bucket
from foretune.data.cache import Entry
from foretune.data.lookup import MOMENTS, Lookup
from foretune.data.sources.base import SampleInfo, Source
from foretune.data.transforms import CropPlan, cut_sample

LatentShape = Callable[[int, int, int], tuple[int, ...]]
"""Maps height and width in pixels and the number of frames to the shape that is noised, without the batch dimension."""

_BELOW_ONE_FP32 = 1 - 2**-24


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(PageLockable):
    """The samples of one forward pass, with all random numbers that it needs."""

    step: int
    micro: int
    indices: tuple[int, ...]
    captions: tuple[str, ...]
    """Empty for a dropped caption."""
    images: Tensor | None
    """(B, 3, H, W) in [-1, 1], or (B, 3, F, H, W) with frames; None if latents are cached."""
    moments: Tensor | None
    """(B, 2C, h, w), or (B, 2C, f, h, w): mean and log-variance of the cached latent distribution; None if they are not
    cached."""
    conditioning: dict[str, Tensor] | None
    """Cached tensors of the captions, and of what else each sample is conditioned on, batch first; None if nothing is
    cached."""
    noise: Tensor
    """(B, *latent shape), fp32: the noise added to the sample."""
    posterior_noise: Tensor | None
    """Same shape: draws the latent from its distribution; None if there is no autoencoder."""
    uniform: Tensor
    """(B,) in [0, 1), fp64: determines the timestep."""
    framing: Tensor | None = None
    """(B, 6), fp32, in pixels: the original image's height and width, top and left of the crop in the resized and
    mirrored image, height and width of the crop; None for made-up samples.
    """

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the batch with all tensors on a device."""
        place = torch.device(device)
        batch = self
        if place.type == "mps":
            # MPS has no fp64; the largest draws must not round up to 1.
            batch = replace(self, uniform=self.uniform.to(torch.float32).clamp(max=_BELOW_ONE_FP32))
        return batch.mapped(lambda tensor: moved(tensor, place))

    def conditioned(self, further: dict[str, Tensor]) -> "Batch":
        """Adds tensors to the conditioning."""
        return replace(self, conditioning={**(self.conditioning or {}), **further}) if further else self

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = change(value)
            elif isinstance(value, dict):
                changed[field.name] = {name: change(tensor) for name, tensor in value.items()}
        return replace(self, **changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """One sample of a batch with all its random draws."""

    index: int
    info: SampleInfo
    plan: CropPlan
    caption: str
    uniform: float
    noise_seed: int
    posterior_seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Assembly:
    """Assembles picked samples into a batch: decodes or looks them up, and draws their noise."""

    source: Source
    latent_shape: LatentShape
    latents: Lookup | None
    text: Lookup | None
    has_autoencoder: bool

    def batch(self, step: int, micro: int, bucket: Bucket, picks: Sequence[Pick]) -> Batch:
        """Returns the batch of the given picks, all cropped to one bucket."""
        shape = self.latent_shape(bucket.height_px, bucket.width_px, bucket.num_frames or 1)
        of_samples = {} if self.latents is None else self._cached_samples(self.latents, picks, bucket)
        of_captions = {} if self.text is None else self._cached_captions(self.text, picks)
        draws_posterior = self.has_autoencoder or self.latents is not None
        return Batch(
            step=step,
            micro=micro,
            indices=tuple(pick.index for pick in picks),
            captions=tuple(pick.caption for pick in picks),
            images=self._images(picks, bucket) if self.latents is None else None,
            moments=of_samples.pop(MOMENTS, None),
            conditioning={**of_captions, **of_samples} or None,
            noise=torch.stack([normal(pick.noise_seed, shape) for pick in picks]),
            posterior_noise=(
                torch.stack([normal(pick.posterior_seed, shape) for pick in picks]) if draws_posterior else None
            ),
            uniform=torch.tensor([pick.uniform for pick in picks], dtype=torch.float64),
            framing=torch.stack([framing(pick.info, pick.plan, bucket) for pick in picks]),
        )

    def _images(self, picks: Sequence[Pick], bucket: Bucket) -> Tensor:
        return torch.stack([cut_sample(self.source, pick.index, pick.plan, bucket) for pick in picks])

    @staticmethod
    def _cached_samples(latents: Lookup, picks: Sequence[Pick], bucket: Bucket) -> dict[str, Tensor]:
        return _stacked([latents.sample(pick.index, pick.info, pick.plan, bucket) for pick in picks])

    @staticmethod
    def _cached_captions(text: Lookup, picks: Sequence[Pick]) -> dict[str, Tensor]:
        return _stacked([text.conditioning(pick.caption, pick.index) for pick in picks])


def _stacked(entries: Sequence[Entry]) -> dict[str, Tensor]:
    return {name: torch.stack([entry[name] for entry in entries]) for name in entries[0]}


def framing(info: SampleInfo, plan: CropPlan, bucket: Bucket) -> Tensor:
    """Returns a sample's row of `Batch.framing`."""
    # A mirrored image was cut before it was mirrored.
    left_px = plan.resize_px[0] - bucket.width_px - plan.left_px if plan.flip else plan.left_px
    values = (info.height_px, info.width_px, plan.top_px, left_px, bucket.height_px, bucket.width_px)
    return torch.tensor(values, dtype=torch.float32)


def normal(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Returns standard normal numbers in fp32 that depend only on the seed."""
    # torch's CPU generator uses 32 bits of a seed, so some of a million noises would be equal. Philox uses all 64.
    generator = np.random.Generator(np.random.Philox(key=seed))
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))
