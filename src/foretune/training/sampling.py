"""Images and clips from a model: same prompt, same seed, same image, whatever else is sampled beside it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from foretune.core.draws import derive_seed
from foretune.data.buckets import Bucket
from foretune.models.family import Conditioning
from foretune.models.tiling import tile_autoencoder
from foretune.models.trainable import TrainableFamily
from foretune.training.not_finite import NotFinite, is_finite

Pixels = npt.NDArray[np.float32]
"""An image (H, W, 3) or a clip (F, H, W, 3)."""
_NUM_CLIP_DIMENSIONS = 4
_MOST_IN_STRIP = 8
_GREY = (128, 128, 128)


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """What to sample. Models without text take one sample for each prompt and ignore its words."""

    prompts: tuple[str, ...]
    seed: int
    num_inference_steps: int
    size: Bucket
    num_text_tokens: int
    guidance_scale: float | None = None
    first_frames: tuple[Image.Image, ...] = ()
    """For models that continue a given frame, one for each prompt; without them, each begins with grey."""

    def first_frame(self, index: int) -> Image.Image:
        """The frame that the clip of a prompt begins with."""
        return self.first_frames[index] if self.first_frames else plain_frame(self.size)


def pipeline_around(
    family: TrainableFamily,
    folder: Path,
    denoiser: nn.Module,
    device: torch.device,
    *,
    vae_tiling: bool = False,
    left_out: Sequence[str] = (),
) -> Any:
    """A pipeline that samples from encoded captions: without text encoders, its other parts in fp32 on the device."""
    parts = {family.denoiser_part: denoiser, **dict.fromkeys((*family.text_parts, *left_out))}
    pipeline = family.load_pipeline(folder, torch.float32, **parts)
    for name in ("vae", *family.image_parts):
        part = getattr(pipeline, name, None)
        if isinstance(part, nn.Module):
            part.to(device)
    if vae_tiling and family.has_latents:
        tile_autoencoder(pipeline.vae)
    return pipeline


def sample(
    family: TrainableFamily,
    pipeline: Any,
    request: SampleRequest,
    encoded: Sequence[Conditioning] | None = None,
    unconditional: Conditioning | None = None,
) -> list[Pixels]:
    """One image or clip for each prompt, as floats in [0, 1]; from encoded captions where no text encoder is loaded."""
    images = []
    for index, prompt in enumerate(request.prompts):
        generator = torch.Generator("cpu").manual_seed(derive_seed(request.seed, "sample", index))
        arguments: dict[str, Any] = {
            "num_inference_steps": request.num_inference_steps,
            "generator": generator,
            # Tensors, because NumPy has no bfloat16 and not every pipeline converts it.
            "output_type": "pt",
            **family.sampling_arguments(request.num_text_tokens, request.guidance_scale),
        }
        if family.text_parts:
            arguments |= pipeline_size(request.size)
            if family.takes_first_frame:
                arguments["image"] = request.first_frame(index)
            if encoded is None:
                arguments["prompt"] = prompt
            else:
                assert unconditional is not None, "guidance needs the empty caption"
                arguments |= family.pipeline_text(encoded[index], unconditional)
                family.give_first_frame(pipeline, encoded[index])
        with torch.no_grad(), decoding(pipeline, f"the sample for {prompt!r}"):
            image = sampled(pipeline(**arguments))[0]
        images.append(image.float().movedim(-3, -1).cpu().numpy())
    return images


def pipeline_size(size: Bucket) -> dict[str, int]:
    """A size as arguments of a pipeline."""
    frames = {} if size.num_frames is None else {"num_frames": size.num_frames}
    return {"height": size.height_px, "width": size.width_px, **frames}


def plain_frame(size: Bucket) -> Image.Image:
    """A first frame for models that need one, where none is given."""
    return Image.new("RGB", (size.width_px, size.height_px), _GREY)


def sampled(output: Any) -> torch.Tensor:
    """The images (B, 3, H, W) or clips (B, F, 3, H, W) of a pipeline's output."""
    found: torch.Tensor = output.frames if hasattr(output, "frames") else output.images
    return found


@contextmanager
def decoding(pipeline: Any, what: str) -> Iterator[None]:
    """For a call of a pipeline: its autoencoder never decodes in fp16, in which that of SDXL overflows.

    Raises NotFinite for a value that pipelines hide: they clip what the last model gives to [0, 1].
    """
    vae = getattr(pipeline, "vae", None)

    def refuse(_: nn.Module, __: Any, output: Any) -> None:
        found = output[0] if isinstance(output, tuple) else getattr(output, "sample", output)
        if not is_finite(found):
            raise NotFinite(f"{what} holds NaN or infinite values")

    handle = (pipeline.unet if vae is None else vae.decoder).register_forward_hook(refuse)
    if vae is not None:
        vae.decode = _never_in_fp16(vae)
    try:
        yield
    finally:
        handle.remove()
        if vae is not None:
            del vae.decode


def _never_in_fp16(vae: Any) -> Callable[..., Any]:
    decode = vae.decode

    def decoded(latents: torch.Tensor, *args: Any, **named: Any) -> Any:
        kind = latents.device.type
        if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.float16:
            return decode(latents, *args, **named)
        with torch.autocast(kind, enabled=False):
            return decode(latents.to(vae.dtype), *args, **named)

    return decoded


def is_clip(pixels: Pixels) -> bool:
    """Whether these are frames, (F, H, W, 3), not an image."""
    return pixels.ndim == _NUM_CLIP_DIMENSIONS


def to_image(pixels: Pixels) -> Image.Image:
    """Floats in [0, 1] as an 8-bit picture; of a clip, a strip of some of its frames."""
    if is_clip(pixels):
        places = np.linspace(0, len(pixels) - 1, min(len(pixels), _MOST_IN_STRIP)).round().astype(int)
        return grid([[to_image(pixels[place]) for place in places]])
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))


def save_sample(pixels: Pixels, path: Path, fps: int) -> None:
    """Writes an image, or a strip of a clip's frames with the whole clip beside it, as an animated WebP."""
    to_image(pixels).save(path)
    if is_clip(pixels) and len(pixels) > 1:
        first, *others = (to_image(frame) for frame in pixels)
        frame_ms = round(1000 / fps)
        clip = path.with_suffix(".webp")
        first.save(clip, save_all=True, append_images=others, duration=frame_ms, loop=0, quality=90)


def grid(rows: Sequence[Sequence[Image.Image]], gap_px: int = 4) -> Image.Image:
    """Pictures of equal size side by side, row by row, on white."""
    width, height = rows[0][0].size
    columns = max(len(row) for row in rows)
    sheet = Image.new(
        "RGB",
        (columns * (width + gap_px) - gap_px, len(rows) * (height + gap_px) - gap_px),
        "white",
    )
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            sheet.paste(picture, (x * (width + gap_px), y * (height + gap_px)))
    return sheet
