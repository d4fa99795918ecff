"""Samples the base model and its fine-tuned versions with the same prompts and seeds into one labelled image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from foretune.accelerator.memory import free_memory
from foretune.choices.model import resolve_model
from foretune.core.errors import Refused, UserError
from foretune.hub.adapters import locate_adapter
from foretune.models.adapters import changes_text_encoders, load_adapter, refuse_foreign
from foretune.models.family import Conditioning
from foretune.models.locating import locate, open_family
from foretune.models.trainable import TrainableFamily
from foretune.step.quantizing.stand_ins import dense_stand_ins
from foretune.training.sampling import SampleRequest, sample, to_image
from foretune.training.sampling_setup import SamplingChoice, SamplingSetup, sampling_setup
from foretune.training.sizes import sampling_size

_LEAST_SIDE_PX = 256
_FONT_PX = 16
_GAP_PX = 12
_SOFT = (70, 76, 84)
Texts = Mapping[str, Conditioning]
"""Encoded prompts, and the empty one; empty for models without text."""


@dataclass(frozen=True, kw_only=True)
class SideBySideRequest:
    """The models and prompts to compare."""

    base: str
    adapters: tuple[str | Path, ...]
    """Folders, files or repositories of the Hub."""
    full: tuple[Path, ...]
    prompts: tuple[str, ...]
    seed: int
    num_inference_steps: int
    size_px: int | str | None
    num_frames: int | None = None
    guidance_scale: float | None
    num_text_tokens: int | None
    setup: SamplingChoice
    """Device, precision and quantised base of all columns."""


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
    models = _models(request, family, folder)
    setup = sampling_setup(request.setup)
    encoded: dict[str, Texts] = {}
    for number, (name, model) in enumerate(models.items()):
        progress(f"sampling {name}", number, len(models))
        if model.encoders not in encoded:
            # The encoders are freed before a denoiser is loaded. Models with the same encoders share what they encode.
            encoded = {model.encoders: model.encode(setup, sampling)}
        columns[name] = model.sample(setup, sampling, encoded[model.encoders])
        free_memory()
    output.parent.mkdir(parents=True, exist_ok=True)
    labelled_sheet(columns, sampling.prompts).save(output)
    return tuple(columns)


@dataclass(frozen=True)
class _Model:
    """One column: a base, which may be a full export, with or without an adapter."""

    family: TrainableFamily
    folder: Path
    adapter: Path | None = None

    @property
    def encoders(self) -> str:
        """Equal where prompts are encoded alike: an adapter may change the text encoders, too."""
        return f"{self.folder} {self.adapter if self._changes_encoders else ''}"

    @property
    def _changes_encoders(self) -> bool:
        return self.adapter is not None and changes_text_encoders(self.adapter)

    def encode(self, setup: SamplingSetup, sampling: SampleRequest) -> Texts:
        """Encodes the prompts; the encoders are freed."""
        if not self._changes_encoders:
            return setup.encode(self.family, self.folder, sampling.prompts, sampling.num_text_tokens)
        assert self.adapter is not None
        # The loader attaches both parts; layers without weights are enough for the denoiser's.
        denoiser = self.family.denoiser_on_meta(setup.dtype)
        encoders = self.family.load_pipeline(
            self.folder, setup.dtype, **{self.family.denoiser_part: denoiser, "vae": None}
        )
        load_adapter(self.family, encoders, self.adapter)
        setattr(encoders, self.family.denoiser_part, None)
        encoded = setup.encoded_by(encoders.to(setup.device), self.family, sampling.prompts, sampling.num_text_tokens)
        del encoders, denoiser
        free_memory()
        return encoded

    def sample(self, setup: SamplingSetup, sampling: SampleRequest, texts: Texts) -> list[Image.Image]:
        """Samples every prompt. Nothing of the model is left afterwards: two at once might not fit."""
        denoiser = setup.load_base(self.family, self.folder)
        pipeline = setup.pipeline(self.family, self.folder, denoiser)
        if self.adapter is not None:
            with dense_stand_ins(denoiser):
                load_adapter(self.family, pipeline, self.adapter)
        encoded = [_batched(texts[prompt]) for prompt in sampling.prompts] if texts else None
        unconditional = _batched(texts[""]) if texts else None
        with setup.sampling():
            return [to_image(pixels) for pixels in sample(self.family, pipeline, sampling, encoded, unconditional)]


def _batched(conditioning: Conditioning) -> Conditioning:
    return {name: tensor[None] for name, tensor in conditioning.items()}


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


def _models(request: SideBySideRequest, family: TrainableFamily, folder: Path) -> dict[str, _Model]:
    """Returns each model by column name. Raises for what cannot be loaded, before the first one is sampled."""
    adapters = [locate_adapter(asked) for asked in request.adapters]
    for adapter in adapters:
        refuse_foreign(family, family.denoiser_on_meta(torch.float32), adapter.path)
    for path in request.full:
        if not path.is_dir():
            raise UserError(f"There is no folder {path}. --full takes what foretune export wrote of a full training.")
    return {
        "base": _Model(family, folder),
        **{f"adapter {adapter.label}": _Model(family, folder, adapter.path) for adapter in adapters},
        **{f"full {path}": _Model(open_family(path), path) for path in request.full},
    }
