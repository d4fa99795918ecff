"""Records traces on demand and caches them."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from foretune import catalog
from foretune.catalog import ModelComponent
from foretune.catalog.models import ComponentSource
from foretune.choices.model import ModelReference
from foretune.choices.step_form import StepForm
from foretune.core.errors import UserError
from foretune.core.input_files import RefusedFile, read_bytes
from foretune.core.values.base import WrongFormat, content_hash
from foretune.core.values.packed_trace import pack, unpack
from foretune.core.values.step_trace import StepTrace
from foretune.models.family import Family
from foretune.models.locating import family_from_catalogue, open_family
from foretune.record.user_folder import user_folder
from foretune.trace.geometry import geometry_of
from foretune.trace.making import habits_of, make_point_trace, make_step_trace, versions
from foretune.trace.shipped import SUFFIX, Geometry
from foretune.trace.stamps import sources_hash
from foretune.trace.tracing import StepSizes

_MOST_PACKED_BYTES = 16 * 2**20


def default_cache_dir() -> Path:
    """Returns where recordings are kept."""
    return user_folder() / "traces"


@dataclass
class LiveTraces:
    """Records steps of one model; reuses cached recordings of the same code and model."""

    family: Family
    cache_dir: Path | None = None
    """None disables the cache."""
    on_recording: Callable[[str, int, int], None] = lambda _slug, _number, _total: None
    """Called before each recording with the step's name, the recording's number and the total."""

    def __call__(self, form: StepForm, sizes: StepSizes, rank: int) -> StepTrace:
        """Returns a trace for captions of this length on an accelerator, or for exactly these sizes on a CPU."""
        is_point = form.numerics == "cpu"
        extent = [asdict(sizes), rank, torch.get_num_threads()] if is_point else sizes.num_text_tokens
        stamp = content_hash([self._model_data(), form.slug(), extent, sources_hash(), versions()])
        path = None if self.cache_dir is None else self.cache_dir / f"{stamp}{SUFFIX}"
        if path is not None and path.is_file():
            try:
                return unpack(read_bytes(path, _MOST_PACKED_BYTES))
            except (WrongFormat, RefusedFile):
                # A damaged file in the cache is treated as missing.
                path.unlink()
        experiment, progress = form.experiment(), partial(self.on_recording, form.slug())
        with habits_of(form):
            if is_point:
                made = make_point_trace(experiment, self.family, sizes, rank, form.numerics, progress)
            else:
                tokens = sizes.num_text_tokens
                made = make_step_trace(
                    experiment, self.family, form.numerics, num_text_tokens=tokens, on_recording=progress
                )
        trace = made.model_copy(update={"made_from": f"live-{stamp}"})
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(pack(trace))
            fresh.replace(path)
        return trace

    def _model_data(self) -> list[object]:
        architecture = self.family.architecture
        return [dict(architecture.denoiser), dict(architecture.vae) if architecture.vae is not None else None]


def family_of(model: ModelReference) -> Family:
    """Returns a model's family from its folder or the catalogue. Downloads nothing."""
    if model.folder is not None:
        return open_family(model.folder)
    rows = catalog.denoisers().values()
    name = next((row.name for row in rows if model.asked == row.name or model.repo == row.hub_repo), None)
    if name is None:
        raise UserError(
            f"{model.asked} is neither in the catalogue nor a folder on this disk, and planning downloads nothing. "
            "Run: foretune list models, or point `model` at a local folder in the diffusers layout"
        )
    return family_from_catalogue(name)


def described(family: Family, name: str) -> tuple[ModelComponent, Geometry]:
    """Describes a model outside the catalogue by its configuration; its other components are unknown."""
    denoiser = family.denoiser_on_meta(torch.bfloat16)
    row = ModelComponent.model_construct(
        name=name,
        role="denoiser",
        family=family.name,
        library="diffusers",
        class_name=family.denoiser_class_name,
        hub_repo=None,
        hub_subfolder=None,
        hub_revision=None,
        num_params=sum(parameter.numel() for parameter in denoiser.parameters()),
        config=dict(family.architecture.denoiser),
        system=None,
        source=ComponentSource(class_code="diffusers", config=name, cross_check=None, num_params="counted"),
    )
    return row, geometry_of(family)
