"""A whole model as one file in the layout of its authors, proved by what diffusers reads from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from foretune.catalog.tool_names import SingleFile, single_file, why_no_single_file
from foretune.choices.model import read_json
from foretune.core.errors import Refused
from foretune.training.exporting import ExportBroken, TrainedModel
from foretune.training.for_tools.original import to_original

_INNER = "text_model."


@dataclass(frozen=True)
class FileProof:
    """What diffusers read from the file."""

    num_tensors: int
    """Tensors of the model, by diffusers' names."""
    num_equal: int
    """Tensors that are in what diffusers loads from the file, bit for bit."""

    def __str__(self) -> str:
        return f"{self.num_equal} of {self.num_tensors} tensors are in what diffusers reads from the file, bit for bit"

    @property
    def holds(self) -> bool:
        return self.num_equal == self.num_tensors > 0


def write_single_file(trained: TrainedModel, path: Path, dtype: torch.dtype, about: Mapping[str, str]) -> FileProof:
    """Writes the trained model, has diffusers read it and compares every tensor.

    Raises:
        Refused: there is no such file for this model.
    """
    form = require_single_file(trained)
    parts = _parts(trained, form, dtype)
    tensors: dict[str, Tensor] = {}
    for name, part in parts.items():
        layout = form.parts[name].layout(_config(part))
        for key, tensor in to_original(_state(part), layout).items():
            tensors[form.parts[name].prefix + key] = tensor.detach().cpu().contiguous().clone()
    save_file(tensors, path, metadata={"format": "pt", **about})
    del tensors, parts  # the proof loads the model again
    return prove_single_file(trained, path, dtype)


def require_single_file(trained: TrainedModel) -> SingleFile:
    """Returns what the file holds; raises if there is none for this model."""
    family = trained.family
    reason = why_no_single_file(family.name, family.architecture.denoiser) or _why_other_encoder(trained)
    if reason is not None:
        raise Refused(f"There is no single-file export of this model: {reason}. For diffusers: foretune export RUN")
    form = single_file(family.name)
    assert form is not None, "there is a reason if there is no form"
    return form


def prove_single_file(trained: TrainedModel, path: Path, dtype: torch.dtype) -> FileProof:
    """Has diffusers load the file, with the base's configuration, and compares every tensor."""
    form = require_single_file(trained)
    wanted = {name: _state(part) for name, part in _parts(trained, form, dtype).items()}
    found = _read(trained, form, path)
    return FileProof(
        num_tensors=sum(map(len, wanted.values())),
        num_equal=sum(
            name in found[part] and torch.equal(found[part][name], tensor.float())
            for part, tensors in wanted.items()
            for name, tensor in tensors.items()
        ),
    )


def _parts(trained: TrainedModel, form: SingleFile, dtype: torch.dtype) -> dict[str, Any]:
    """Returns the trained denoiser, and the other parts as the base has them."""
    denoiser = {trained.family.denoiser_part: trained.method.denoiser}
    if set(form.parts) == set(denoiser):
        return denoiser
    pipeline = trained.family.load_pipeline(trained.folder, dtype, **denoiser)
    return {name: getattr(pipeline, name) for name in form.parts}


def _read(trained: TrainedModel, form: SingleFile, path: Path) -> dict[str, dict[str, Tensor]]:
    """Returns what diffusers reads, as fp32: it holds smaller types exactly, and some models keep parts in it."""
    part = trained.family.denoiser_part
    known: dict[str, Any] = {"torch_dtype": torch.float32, "local_files_only": True, "config": str(trained.folder)}
    try:
        if set(form.parts) == {part}:
            denoiser = type(trained.method.denoiser).from_single_file(str(path), subfolder=part, **known)  # type: ignore[attr-defined]
            return {part: _state(denoiser)}
        pipeline = trained.family.pipeline_class().from_single_file(str(path), **known)
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise ExportBroken(f"diffusers could not read the file: {error}. Nothing was written.") from error
    return {name: _state(getattr(pipeline, name)) for name in form.parts}


def _state(part: Any) -> dict[str, Tensor]:
    """Returns the tensors; text encoders have an inner model in some versions of transformers."""
    return {name.removeprefix(_INNER): tensor.detach() for name, tensor in part.state_dict().items()}


def _config(part: Any) -> Mapping[str, Any]:
    config = part.config
    return config.to_dict() if hasattr(config, "to_dict") else dict(config)


def _why_other_encoder(trained: TrainedModel) -> str | None:
    """Returns why a text encoder has no place: that of Stable Diffusion 2 has one layer less in diffusers."""
    form = single_file(trained.family.name)
    if form is None or "text_encoder" not in form.parts:
        return None
    if read_json(trained.folder / "text_encoder" / "config.json").get("hidden_act") == "quick_gelu":
        return None
    return "its first text encoder is not OpenAI's CLIP, which the layout is for"
