"""The base model and what was made of it, sampled with the same prompts and seeds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from PIL import Image

from foretune.choices.model import resolve_model
from foretune.choices.training import Precision
from foretune.models.adapters import load_adapter
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
    precision: str


def side_by_side(request: Comparison, output: Path, progress: Callable[[str, int, int], None]) -> tuple[str, ...]:
    """Writes one picture, a row for each prompt and a column for each model; returns the columns' names."""
    folder, _ = locate(resolve_model(request.base))
    family = open_family(folder)
    sampling = SampleRequest(
        prompts=request.prompts,
        seed=request.seed,
        num_inference_steps=request.num_inference_steps,
        size_px=request.size_px or family.default_resolution_px(),
        num_text_tokens=request.num_text_tokens or family.default_text_tokens,
        guidance_scale=request.guidance_scale,
    )
    num_models = 1 + len(request.adapters) + len(request.full)
    columns: dict[str, list[Image.Image]] = {}
    for number, (name, pipeline) in enumerate(_pipelines(request, family, folder)):
        progress(f"sampling {name}", number, num_models)
        columns[name] = [to_image(pixels) for pixels in sample(family, pipeline, sampling)]
        del pipeline
        free_memory()
    output.parent.mkdir(parents=True, exist_ok=True)
    grid(list(zip(*columns.values(), strict=True))).save(output)
    return tuple(columns)


def _pipelines(request: Comparison, family: Family, folder: Path) -> Iterator[tuple[str, Any]]:
    """One model after the other: two at once might not fit."""
    device = choose_device(request.device)
    dtype = PrecisionPolicy(cast(Precision, request.precision)).compute_dtype
    yield "base", family.load_pipeline(folder, dtype).to(device)
    for directory in request.adapters:
        pipeline = family.load_pipeline(folder, dtype)
        load_adapter(family, pipeline, directory)
        yield f"adapter {directory}", pipeline.to(device)
    for directory in request.full:
        yield f"full {directory}", open_family(directory).load_pipeline(directory, dtype).to(device)
