"""The base model and what was made of it, sampled with the same prompts and seeds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from foretune.choices.model import resolve_model
from foretune.choices.training import Precision
from foretune.core.errors import Refused, UserError
from foretune.models.adapters import load_adapter, refuse_foreign
from foretune.models.family import Family
from foretune.models.locating import locate, open_family
from foretune.run.devices import choose_device
from foretune.run.encoding import free_memory
from foretune.run.sampling import SampleRequest, grid, sample, to_image
from foretune.step.precision import PrecisionPolicy


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What to put side by side."""

    base: str
    adapters: tuple[Path, ...]
    full: tuple[Path, ...]
    prompts: tuple[str, ...]
    seed: int
    num_inference_steps: int
    size_px: int | None
    guidance_scale: float | None
    num_text_tokens: int | None
    device: str
    precision: Precision


def side_by_side(request: Comparison, output: Path, progress: Callable[[str, int, int], None]) -> tuple[str, ...]:
    """Writes one picture, a row for each prompt and a column for each model; returns the columns' names."""
    if output.suffix.lower() not in Image.registered_extensions():
        raise Refused(
            f"{output} does not end like a picture, such as .png. Type: --output {output.with_suffix('.png')}"
        )
    folder, _ = locate(resolve_model(request.base))
    family = open_family(folder)
    sampling = SampleRequest(
        prompts=request.prompts,
        seed=request.seed,
        num_inference_steps=request.num_inference_steps,
        size_px=request.size_px or family.default_resolution_px(),
        num_text_tokens=request.num_text_tokens or family.own_text_tokens(),
        guidance_scale=request.guidance_scale,
    )
    columns: dict[str, list[Image.Image]] = {}
    loaders = _loaders(request, family, folder)
    for number, (name, load) in enumerate(loaders.items()):
        progress(f"sampling {name}", number, len(loaders))
        # Held by nobody: two models at once might not fit.
        columns[name] = [to_image(pixels) for pixels in sample(family, load(), sampling)]
        free_memory()
    output.parent.mkdir(parents=True, exist_ok=True)
    grid(list(zip(*columns.values(), strict=True))).save(output)
    return tuple(columns)


def _loaders(request: Comparison, family: Family, folder: Path) -> dict[str, Callable[[], Any]]:
    """How each model is loaded, by the name of its column."""
    # What cannot be loaded is said before the first model is sampled.
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
