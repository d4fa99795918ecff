"""A source of made-up images of any sizes, and what else tests of batches are built from."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from foretune.choices.data import ShapesData
from foretune.data.buckets import Bucket
from foretune.data.grouping import members_by_bucket
from foretune.data.images import Pixels
from foretune.data.maker import BatchMaker
from foretune.data.order import Order
from foretune.data.sources.base import SampleInfo, Source
from foretune.data.sources.fingerprint import listed_fingerprint
from foretune.data.sources.shapes import Shapes


class MadeSource:
    """Images of noise, one for each given width and height."""

    is_generated = False

    def __init__(
        self,
        sizes_px: Sequence[tuple[int, int]],
        repeats: Sequence[int] = (),
        first: int = 0,
        frames: Sequence[int] = (),
    ) -> None:
        self.sizes_px = list(sizes_px)
        self.all_repeats = list(repeats) or [1] * len(self.sizes_px)
        self.first = first
        self.num_frames = list(frames) or [1] * len(self.sizes_px)

    def __len__(self) -> int:
        return len(self.sizes_px)

    def info(self, index: int) -> SampleInfo:
        width_px, height_px = self.sizes_px[index]
        fingerprint = hashlib.blake2b(str(self.first + index).encode(), digest_size=20).hexdigest()
        return SampleInfo(
            fingerprint=fingerprint,
            width_px=width_px,
            height_px=height_px,
            caption=f"caption {index}",
            num_frames=self.num_frames[index],
        )

    def pixels(self, index: int) -> Pixels:
        width_px, height_px = self.sizes_px[index]
        return np.random.default_rng(index).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)

    def name(self, index: int) -> str:
        return f"image {index}"

    def repeats(self, index: int) -> int:
        return self.all_repeats[index]

    def notes(self) -> tuple[str, ...]:
        return ()

    def fingerprint(self) -> str:
        return listed_fingerprint(self)


def latent_shape(height_px: int, width_px: int, num_frames: int) -> tuple[int, ...]:
    assert num_frames == 1
    return 4, height_px // 8, width_px // 8


def make_maker(
    source: Source | None = None, *, buckets: tuple[Bucket, ...] = (Bucket(16, 16),), **given: Any
) -> BatchMaker:
    """A batch maker over all samples of a source; `given` are fields of it, or of the choice of data."""
    source = source or Shapes(60, size_px=16)
    on_maker = {name: value for name, value in given.items() if name in BatchMaker.__dataclass_fields__}
    on_choice = {name: value for name, value in given.items() if name not in on_maker}
    fields = {"seed": 5, "batch_size": 2, "latent_shape": latent_shape, **on_maker}
    per_step = fields["batch_size"] * fields.get("gradient_accumulation", 1) * fields.get("world_size", 1)
    members = members_by_bucket(source, range(len(source)), buckets)
    return BatchMaker(
        source=source,
        buckets=buckets,
        order=Order(members, per_step, fields["seed"]),
        choice=ShapesData(kind="shapes", **on_choice),
        **fields,
    )


def encode_moments(images: torch.Tensor) -> torch.Tensor:
    """What a tiny autoencoder would make of images (B, 3, H, W): moments (B, 8, H / 8, W / 8)."""
    means = torch.nn.functional.avg_pool2d(images, 8)
    return torch.cat([means, means[:, :1], -means, means[:, :1] - 9], dim=1)


def save_image(path: Path, size_px: tuple[int, int] = (8, 6), colour: Any = (10, 20, 30), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size_px, colour).save(path)
    return path
