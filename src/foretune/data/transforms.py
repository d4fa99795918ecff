"""Resizes an image, or each frame of a clip, to cover its bucket, crops it, and mirrors it if requested."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foretune.data.buckets import Bucket
from foretune.data.images import Pixels
from foretune.data.sources.base import Source, frames_of


@dataclass(frozen=True, kw_only=True, slots=True)
class CropPlan:
    """The transform of one image; with the image's content and the bucket it determines every pixel."""

    resize_px: tuple[int, int]
    """Width and height to which the whole image is resized; it covers the bucket."""
    left_px: int
    top_px: int
    flip: bool


def plan_crop(
    size_px: tuple[int, int],
    bucket: Bucket,
    mode: Literal["center", "random"],
    draws: tuple[float, float] = (0.0, 0.0),
    *,
    flip: bool = False,
) -> CropPlan:
    """Returns the plan for an image of the given width and height.

    `draws` in [0, 1) choose the position of a random crop, horizontally and vertically; a centre crop ignores them.
    """
    width_px, height_px = size_px
    scale = max(bucket.width_px / width_px, bucket.height_px / height_px)
    resize_px = (
        max(bucket.width_px, round(width_px * scale)),
        max(bucket.height_px, round(height_px * scale)),
    )
    spare_px = (resize_px[0] - bucket.width_px, resize_px[1] - bucket.height_px)
    if mode == "center":
        left_px, top_px = spare_px[0] // 2, spare_px[1] // 2
    else:
        left_px, top_px = (math.floor(draw * (spare + 1)) for draw, spare in zip(draws, spare_px, strict=True))
    return CropPlan(resize_px=resize_px, left_px=left_px, top_px=top_px, flip=flip)


def cut_sample(source: Source, index: int, plan: CropPlan, bucket: Bucket) -> Tensor:
    """Returns a sample cropped to its bucket, in [-1, 1]: an image (3, H, W), or the first frames (3, F, H, W)."""
    if bucket.num_frames is None:
        return apply(source.pixels(index), plan, bucket)
    frames = frames_of(source, index, bucket.num_frames)
    return torch.stack([apply(frame, plan, bucket) for frame in frames], dim=1)


def apply(pixels: Pixels, plan: CropPlan, bucket: Bucket) -> Tensor:
    """Returns the image (3, H, W) cropped to its bucket, in [-1, 1]."""
    image = Image.fromarray(pixels)
    # Only the cropped part is resized, so that a long image needs no more memory than a square one; the filter still
    # uses the pixels around it.
    across, down = image.width / plan.resize_px[0], image.height / plan.resize_px[1]
    box = (
        plan.left_px * across,
        plan.top_px * down,
        min((plan.left_px + bucket.width_px) * across, image.width),
        min((plan.top_px + bucket.height_px) * down, image.height),
    )
    cut = image.resize((bucket.width_px, bucket.height_px), Image.Resampling.LANCZOS, box=box)
    if plan.flip:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    values = torch.from_numpy(np.array(cut)).permute(2, 0, 1).contiguous()
    return values.to(torch.float32) / 127.5 - 1
