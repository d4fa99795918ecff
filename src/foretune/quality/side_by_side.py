"""Samples the base model and its fine-tuned versions with the same prompts and seeds into one labelled image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from foretune.choices.model import resolve_model
from foretune.choices.training import Precision
from foretune.core.errors import Refused, UserError
from foretune.models.adapters import load_adapter, refuse_foreign
from foretune.models.locating import locate, open_family
from foretune.models.trainable import TrainableFamily
from foretune.step.precision import PrecisionPolicy
from foretune.training.devices import choose_device
from foretune.training.encoding import free_memory
from foretune.training.sampling import SampleRequest, sample, to_image
from foretune.training.sizes import sampling_size

_LEAST_SIDE_PX = 256
_FONT_PX = 16
_GAP_PX = 12
_SOFT = (70, 76, 84)


@dataclass(frozen=True, kw_only=True)
class SideBySideRequest:
    """The models and prompts to compare."""

    base: str
    adapters: tuple[Path, ...]
    full: tuple[Path, ...]
    prompts: tuple[str, ...]
    seed: int
    num_inference_steps: int
    size_px: int | str | None
    num_frames: int | None = None
    guidance_scale: float | None
    num_text_tokens: int | None
    device: str
    precision: Precision


def side_by_side(
    request: SideBySideRequest, output: Path, progress: Callable[[str, int, int], None]
) -> tuple[str, ...]:
    """Writes one image with a labelled row per prompt and a labelled column per model; returns the column names.

    Small images are enlarged by an integer factor, so that each pixel becomes a square.
    """
    if output.suffix.lower() not in Image.registered_extensions():
        raise Refused(
            f"{output} has no suffix of an image format. Run again with: --output {output.with_suffix('.png')}"
        )
    folder, _ = locate(resolve_model(request.base))
    family = open_family(folder)
    sampling = SampleRequest(
        prompts=request.prompts,
        seed=request.seed,
        num_inference_steps=request.num_inference_steps,
        size=sampling_size(family, request.size_px, request.num_frames),
        num_text_tokens=request.num_text_tokens or family.own_text_tokens(),
        guidance_scale=request.guidance_scale,
    )
    columns: dict[str, list[Image.Image]] = {}
    loaders = _loaders(request, family, folder)
    for number, (name, load) in enumerate(loaders.items()):
        progress(f"sampling {name}", number, len(loaders))
        # Not stored in a variable: two models at once might not fit.
        columns[name] = [to_image(pixels) for pixels in sample(family, load(), sampling)]
        free_memory()
    output.parent.mkdir(parents=True, exist_ok=True)
    labelled_sheet(columns, sampling.prompts).save(output)
    return tuple(columns)


def labelled_sheet(columns: Mapping[str, Sequence[Image.Image]], prompts: Sequence[str]) -> Image.Image:
    """Returns a sheet with each column's images below its name, and each row's prompt above its images."""
    shown = {name: [_enlarged(image) for image in images] for name, images in columns.items()}
    width = max(image.width for images in shown.values() for image in images)
    height = max(image.height for images in shown.values() for image in images)
    font = ImageFont.load_default(size=_FONT_PX)
    heads = [_wrapped(name, font, width) for name in shown]
    total = len(shown) * (width + _GAP_PX) + _GAP_PX
    texts = [_wrapped(prompt, font, total - 2 * _GAP_PX) for prompt in prompts]
    line_px = _FONT_PX + 6
    head_px = _GAP_PX + line_px * max(map(len, heads))
    rows_px = [line_px * len(lines) + 2 * _GAP_PX + height for lines in texts]
    sheet = Image.new("RGB", (total, head_px + sum(rows_px) + _GAP_PX), "white")
    draw = ImageDraw.Draw(sheet)
    for column, lines in enumerate(heads):
        left = _GAP_PX + column * (width + _GAP_PX)
        draw.multiline_text((left, _GAP_PX), "\n".join(lines), fill="black", font=font, spacing=6)
    top = head_px
    for row, lines in enumerate(texts):
        top += _GAP_PX
        draw.multiline_text((_GAP_PX, top), "\n".join(lines), fill=_SOFT, font=font, spacing=6)
        top += line_px * len(lines)
        for column, images in enumerate(shown.values()):
            sheet.paste(images[row], (_GAP_PX + column * (width + _GAP_PX), top))
        top += height + _GAP_PX
    return sheet


def _enlarged(image: Image.Image) -> Image.Image:
    times = -(-_LEAST_SIDE_PX // max(image.size))
    return image if times <= 1 else image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)


def _wrapped(text: str, font: Any, width_px: int) -> list[str]:
    """Splits text into lines that fit a width; breaks words that do not fit by themselves."""
    lines, line = [], ""
    for word in text.split():
        whole = f"{line} {word}".strip()
        if font.getlength(whole) <= width_px:
            line = whole
            continue
        lines += [line] if line else []
        line = ""
        for letter in word:
            if line and font.getlength(line + letter) > width_px:
                lines.append(line)
                line = ""
            line += letter
    return [*lines, line]


def _loaders(request: SideBySideRequest, family: TrainableFamily, folder: Path) -> dict[str, Callable[[], Any]]:
    """Returns a loader of each model, by column name."""
    # Report what cannot be loaded before the first model is sampled.
    for path in request.adapters:
        refuse_foreign(family, family.denoiser_on_meta(torch.float32), path)
    for path in request.full:
        if not path.is_dir():
            raise UserError(f"There is no folder {path}. --full takes what foretune export wrote of a full training.")
        open_family(path)
    device = choose_device(request.device)
    dtype = PrecisionPolicy(request.precision).compute_dtype

    def load(adapter: Path | None = None, full: Path | None = None) -> Any:
        of_family, where = (family, folder) if full is None else (open_family(full), full)
        pipeline = of_family.load_pipeline(where, dtype)
        if adapter is not None:
            load_adapter(family, pipeline, adapter)
        return pipeline.to(device)

    return {
        "base": load,
        **{f"adapter {path}": partial(load, adapter=path) for path in request.adapters},
        **{f"full {path}": partial(load, full=path) for path in request.full},
    }
