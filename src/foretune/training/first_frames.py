"""The frames that sampled clips begin with, for models that continue a given first frame."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from foretune.accelerator.memory import free_memory
from foretune.data.buckets import Bucket
from foretune.data.held_out import held_out_plan
from foretune.data.sources import Source
from foretune.data.transforms import apply
from foretune.models.family import Conditioning
from foretune.training.encoding import EncoderPlan


@dataclass(frozen=True)
class FirstFrame:
    """A frame, and what the denoiser reads of it beside its latents, without a batch dimension."""

    image: Image.Image
    conditioning: Conditioning


def first_frames(
    plan: EncoderPlan, source: Source, indices: Sequence[int], size: Bucket, num: int, live_encoder: Any = None
) -> tuple[FirstFrame, ...]:
    """Returns the first frames of `num` samples, in turn; none for models that take none.

    The image encoder is loaded for it, unless it stays loaded anyway.
    """
    if not plan.family.takes_first_frame or not num:
        return ()
    chosen = [int(indices[number % len(indices)]) for number in range(num)]
    frames = torch.stack([apply(source.pixels(i), held_out_plan(source.info(i), size), size) for i in chosen])
    image_encoder = live_encoder or plan.load_image_encoder()
    with torch.no_grad():
        embedded = {name: tensor.cpu() for name, tensor in plan.family.embed_frames(image_encoder, frames).items()}
    del image_encoder
    free_memory()
    return tuple(
        FirstFrame(_image(frame), {name: tensor[number] for name, tensor in embedded.items()})
        for number, frame in enumerate(frames)
    )


def _image(frame: torch.Tensor) -> Image.Image:
    pixels = ((frame + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())
