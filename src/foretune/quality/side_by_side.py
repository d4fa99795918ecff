"""Samples the base model and its fine-tuned versions with the same prompts and seeds into one labelled image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from foretune.accelerator.memory import free_memory
from foretune.choices.experiment import Experiment
from foretune.choices.inference import check_form
from foretune.core.errors import Refused, UserError
from foretune.core.observer import Observer
from foretune.data.buckets import Bucket
from foretune.hub.adapters import locate_adapter
from foretune.models.adapters import changes_text_encoders, load_adapter, refuse_foreign
from foretune.models.trainable import TrainableFamily
from foretune.quality.parallel_sampling import SamplingTask, Texts, sample_task
from foretune.record.run_directory import RunDirectory
from foretune.training.sampled_model import SampledModel, require_adapter_to_merge
from foretune.training.sampling import SampleRequest, to_image
from foretune.training.sampling_setup import SamplingChoice, SamplingSetup, sampling_setup
from foretune.training.sizes import sampling_size

_LEAST_SIDE_PX = 256
_FONT_PX = 16
_GAP_PX = 12
_SOFT = (70, 76, 84)


@dataclass(frozen=True, kw_only=True)
class SideBySideRequest:
    """The models and prompts to compare."""

    base: str | None
    """None: the base of the runs."""
    runs: tuple[Path, ...] = ()
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
    """How all columns are sampled."""


def side_by_side(request: SideBySideRequest, output: Path, observer: Observer) -> tuple[str, ...]:
    """Writes one image with a labelled row per prompt and a labelled column per model; returns the column names.

    Small images are enlarged by an integer factor, so that each pixel becomes a square.
    """
    if output.suffix.lower() not in Image.registered_extensions():
        raise Refused(
            f"{output} has no suffix of an image format. Run again with: --output {output.with_suffix('.png')}"
        )
    check_form(request.setup, has_adapter_file=bool(request.adapters))
    models = _models(request)
    if request.setup.merge:
        require_adapter_to_merge([model.files for model in models.values()])
    sampling = _sampling(request, models["base"].family)
    columns: dict[str, list[Image.Image]] = {}
    setup = sampling_setup(request.setup, _first_experiment(request))
    # Once more: the run may quantise its base.
    check_form(replace(request.setup, quantize=setup.quantize.denoiser), has_adapter_file=bool(request.adapters))
    encoded: dict[str, Texts] = {}
    for name, model in models.items():
        observer.preparing(f"sampling {name}", 0, len(sampling.prompts))
        if model.encoders not in encoded:
            # The encoders are freed before a denoiser is loaded. Models with the same encoders share what they encode.
            encoded = {model.encoders: model.encode(setup, sampling)}
        task = SamplingTask(model=model.files, request=sampling, batch_size=request.setup.batch_size or 1)
        # Nothing of the model is left afterwards: two at once might not fit.
        made = sample_task(task, setup, encoded[model.encoders], request.setup.devices, observer, f"sampling {name}")
        columns[name] = [to_image(pixels) for pixels in made.images]
        free_memory()
    output.parent.mkdir(parents=True, exist_ok=True)
    labelled_sheet(columns, sampling.prompts).save(output)
    return tuple(columns)


def _first_experiment(request: SideBySideRequest) -> Experiment | None:
    return RunDirectory.open(request.runs[0]).read_experiment()[1] if request.runs else None


def _sampling(request: SideBySideRequest, family: TrainableFamily) -> SampleRequest:
    """Fills in what was left out: as the first run was trained, or as the model's own."""
    trained, tokens = None, family.own_text_tokens()
    if request.runs:
        effective = RunDirectory.open(request.runs[0]).read_experiment()[2]
        trained, tokens = Bucket.from_facts(effective), int(effective["num_text_tokens"])
    if family.takes_first_frame and (request.setup.batch_size or 1) > 1:
        raise Refused("This model continues a given frame, and its pipeline takes one frame at a time. Use --batch 1")
    return SampleRequest(
        prompts=request.prompts,
        seed=request.seed,
        num_inference_steps=request.num_inference_steps,
        size=sampling_size(family, request.size_px, request.num_frames, trained=trained),
        num_text_tokens=request.num_text_tokens or tokens,
        guidance_scale=request.guidance_scale,
    )


@dataclass(frozen=True)
class _Model:
    """One column: a base, which may be a full export, with or without an adapter; or a run."""

    files: SampledModel

    @property
    def family(self) -> TrainableFamily:
        return self.files.family

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def adapter(self) -> Path | None:
        return self.files.adapter

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


def _models(request: SideBySideRequest) -> dict[str, _Model]:
    """Returns each model by column name. Raises for what cannot be loaded, before the first one is sampled."""
    runs = {f"run {path}": _Model(SampledModel.of_run(path)) for path in request.runs}
    if request.base is not None:
        base = _Model(SampledModel.find(request.base))
    elif not runs:
        raise UserError("There is nothing to sample. Name a run, or a model: foretune sample --base MODEL")
    else:
        base = _Model(SampledModel(folder=next(iter(runs.values())).folder))
        if len({model.folder for model in runs.values()}) > 1:
            raise Refused(
                "The runs were trained on different bases. Name the one to show beside them with --base MODEL"
            )
    located = [locate_adapter(asked) for asked in request.adapters]
    for adapter in located:
        refuse_foreign(base.family, base.family.denoiser_on_meta(torch.float32), adapter.path)
    for path in request.full:
        if not path.is_dir():
            raise UserError(f"There is no folder {path}. --full takes what foretune export wrote of a full training.")
    adapters = {
        f"adapter {adapter.label}": SampledModel(folder=base.folder, adapter=adapter.path) for adapter in located
    }
    full = {f"full {path}": SampledModel(folder=path) for path in request.full}
    return {"base": base, **runs, **{name: _Model(files) for name, files in {**adapters, **full}.items()}}
