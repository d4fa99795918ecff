"""A family's geometry, computed with its own functions."""

import torch

from foretune.models.family import Family
from foretune.trace.shipped import Geometry


def geometry_of(family: Family) -> Geometry:
    """Returns how latents follow from image sizes, and the model's default sizes and targets."""
    spatial, temporal, multiple = _factors(family)
    height_px, width_px = family.default_size_px()
    return Geometry(
        spatial_factor=spatial,
        temporal_factor=temporal,
        frames_multiple=multiple,
        size_multiple_px=family.size_multiple_px(),
        default_height_px=height_px,
        default_width_px=width_px,
        default_num_frames=family.default_num_frames(),
        default_text_tokens=family.own_text_tokens(),
        text_is_fixed=family.text_is_fixed,
        adapter_targets=family.adapter_targets,
        max_side_px=family.max_resolution_px(),
        stacks=tuple(kind.count for kind in family.block_kinds()) or (_num_blocks(family),),
    )


def _num_blocks(family: Family) -> int:
    return len(family.blocks(family.denoiser_on_meta(torch.bfloat16)))


def _factors(family: Family) -> tuple[int, int, int]:
    side_px = family.size_multiple_px() * 64
    _, *extent = family.latent_shape(side_px, side_px, 1)
    spatial = side_px // extent[-1]
    if len(extent) == 2:  # noqa: PLR2004 - height and width, no frames
        return spatial, 1, 1
    frames = [family.latent_shape(side_px, side_px, num_frames)[1] for num_frames in range(1, 66)]
    multiple = frames[0]
    temporal = next(number for number, count in enumerate(frames) if count > multiple) // multiple
    return spatial, temporal, multiple
