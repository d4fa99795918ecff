"""A whole model as one file in the layout of its authors, proved by what diffusers reads from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog.tool_names import OriginalLayout, SingleFile, single_file, why_no_single_file
from foretune.choices.model import read_json
from foretune.core.errors import Refused
from foretune.models.trainable import TrainableFamily
from foretune.training.export_files import ExportBroken
from foretune.training.for_tools.original import original_names, to_original
from foretune.training.streamed_files import write_tensors

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


@dataclass(frozen=True)
class WholeModel:
    """A denoiser whose tensors are read one at a time, and the folder with the other parts of its pipeline."""

    family: TrainableFamily
    folder: Path
    denoiser: nn.Module
    """Its class, configuration, shapes and dtypes; it may be on meta."""
    read: Callable[[str], Tensor]
    """Returns the tensor of a name."""


def write_single_file(model: WholeModel, path: Path, dtype: torch.dtype, about: Mapping[str, str]) -> FileProof:
    """Writes the model, tensor by tensor, has diffusers read it and compares every tensor.

    Raises:
        Refused: there is no such file for this model.
    """
    form = require_single_file(model)
    forms: dict[str, Tensor] = {}
    readers: dict[str, Callable[[], Tensor]] = {}
    for name, (part, read) in _parts(model, form, dtype).items():
        layout, prefix = form.parts[name].layout(_config(part)), form.parts[name].prefix
        state = _state(part)
        forms |= {prefix + key: tensor for key, tensor in to_original(_on_meta(state), layout).items()}
        for key, names in original_names(state, layout).items():
            readers[prefix + key] = partial(_in_layout, names, read, layout, key)
    write_tensors(path, forms, lambda key: readers[key](), {"format": "pt", **about})
    readers.clear()  # the proof loads the other parts again
    return prove_single_file(model, path, dtype)


def _in_layout(names: Sequence[str], read: Callable[[str], Tensor], layout: OriginalLayout, key: str) -> Tensor:
    return to_original({name: read(name) for name in names}, layout)[key].detach().cpu()


def _on_meta(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to("meta") for name, tensor in state.items()}


def require_single_file(model: WholeModel) -> SingleFile:
    """Returns what the file holds; raises if there is none for this model."""
    family = model.family
    reason = why_no_single_file(family.name, family.architecture.denoiser) or _why_other_encoder(model)
    if reason is not None:
        raise Refused(f"There is no single-file export of this model: {reason}. For diffusers: foretune export RUN")
    form = single_file(family.name)
    assert form is not None, "there is a reason if there is no form"
    return form


def prove_single_file(model: WholeModel, path: Path, dtype: torch.dtype) -> FileProof:
    """Has diffusers load the file, with the base's configuration, and compares every tensor.

    Some models keep parts in fp32 that diffusers rounds where it reads other numbers; those are compared rounded.
    """
    form = require_single_file(model)
    found = _read(model, form, path, dtype)
    num_tensors = num_equal = 0
    for name, (part, read) in _parts(model, form, dtype).items():
        for key in _state(part):
            num_tensors += 1
            other = found[name].get(key)
            num_equal += other is not None and torch.equal(other, read(key).to(other.dtype))
    return FileProof(num_tensors=num_tensors, num_equal=num_equal)


def _parts(model: WholeModel, form: SingleFile, dtype: torch.dtype) -> dict[str, tuple[Any, Callable[[str], Tensor]]]:
    """Returns the trained denoiser, and the other parts as the base has them, each with what reads its tensors."""
    part = model.family.denoiser_part
    parts: dict[str, tuple[Any, Callable[[str], Tensor]]] = {part: (model.denoiser, model.read)}
    if set(form.parts) != set(parts):
        pipeline = model.family.load_pipeline(model.folder, dtype, **{part: None})
        others = {name: getattr(pipeline, name) for name in form.parts if name != part}
        parts |= {name: (other, _state(other).__getitem__) for name, other in others.items()}
    return parts


def _read(model: WholeModel, form: SingleFile, path: Path, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    """Returns what diffusers reads."""
    part = model.family.denoiser_part
    known: dict[str, Any] = {"torch_dtype": dtype, "local_files_only": True, "config": str(model.folder)}
    try:
        if set(form.parts) == {part}:
            denoiser = type(model.denoiser).from_single_file(str(path), subfolder=part, **known)  # type: ignore[attr-defined]
            return {part: _state(denoiser)}
        pipeline = model.family.pipeline_class().from_single_file(str(path), **known)
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise ExportBroken(f"diffusers could not read the file: {error}. Nothing was written.") from error
    return {name: _state(getattr(pipeline, name)) for name in form.parts}


def _state(part: Any) -> dict[str, Tensor]:
    """Returns the tensors; text encoders have an inner model in some versions of transformers."""
    return {name.removeprefix(_INNER): tensor.detach() for name, tensor in part.state_dict().items()}


def _config(part: Any) -> Mapping[str, Any]:
    config = part.config
    return config.to_dict() if hasattr(config, "to_dict") else dict(config)


def _why_other_encoder(model: WholeModel) -> str | None:
    """Returns why a text encoder has no place: that of Stable Diffusion 2 has one layer less in diffusers."""
    form = single_file(model.family.name)
    if form is None or "text_encoder" not in form.parts:
        return None
    if read_json(model.folder / "text_encoder" / "config.json").get("hidden_act") == "quick_gelu":
        return None
    return "its first text encoder is not OpenAI's CLIP, which the layout is for"
