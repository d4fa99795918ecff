"""A single-file checkpoint, as people share them, becomes a folder in the diffusers layout that can be trained.

Only tensors are read from the file. Everything else (configurations, tokenizers, parts that the file lacks) is the base
model's. No model is loaded: names and shapes in the base's own files say what must be there.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from foretune.catalog.tool_names import original_layout, single_file
from foretune.catalog.tool_names.forms import FilePart
from foretune.choices.model import PIPELINE_INDEX, read_json
from foretune.core.errors import Refused, UserError
from foretune.core.output_files import beside, move
from foretune.hub.selection import needed_files
from foretune.models.copying import copy_model
from foretune.models.tensor_files import open_tensors
from foretune.models.trainable import TrainableFamily
from foretune.training.for_tools.original import from_original

_SUFFIXES = (".safetensors", ".sft")
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_DENOISER_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "")
"""In files of different programs."""
_OTHER_PARTS = ("vae", "first_stage_model", "cond_stage_model", "conditioner", "text_encoders", "model_ema")
"""Beginnings of the names of tensors that are not the denoiser's, in files where its own have no prefix."""
_FLOATS = ("F32", "F16", "BF16")
_COUNTING = ("I64", "I32")
_MARKS = {"v_pred": "predicts velocity", "ztsnr": "has zero terminal SNR", "edm_vpred.sigma_max": "has EDM levels"}
"""Empty tensors by which ComfyUI tells how an SDXL file was trained."""
# Names of attention layers in the files of the first autoencoders of diffusers, which it renames when it loads them.
_FORMER = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_FORMER_NAME = re.compile(rf"(?<=\.attentions\.0\.)({'|'.join(_FORMER)})(?=\.)")
_NUM_SHOWN = 3


@dataclass(frozen=True)
class ImportedCheckpoint:
    """A folder in the diffusers layout, and where its parts are from."""

    path: Path
    num_tensors: Mapping[str, int]
    """Of each part that is from the file."""
    from_base: tuple[str, ...]
    """Parts with weights that are the base model's."""
    dtypes: tuple[str, ...]
    """Of the tensors that were read, the most frequent first."""
    unused: tuple[str, ...]
    """Tensors of the file that were not read."""

    def __str__(self) -> str:
        """What `foretune import-checkpoint` prints."""
        parts = ", ".join(f"{part} ({count:,} tensors)" for part, count in self.num_tensors.items())
        lines = [f"From the file, in {' and '.join(self.dtypes)}: {parts}"]
        if self.from_base:
            lines.append(f"From the base model: {', '.join(self.from_base)}")
        if self.unused:
            lines.append(f"In the file and not read ({len(self.unused):,}): {_shown(self.unused)}")
        return "\n".join(lines)


def import_file(
    path: Path, family: TrainableFamily, base: Path, output: Path, *, follow_links: bool = False
) -> ImportedCheckpoint:
    """Writes the base's folder with the weights of the file in it.

    Raises:
        Refused: the file is no checkpoint of this family and size, or is quantised or pickled.
        UserError: a file cannot be read or written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is not an empty folder. Choose another: --output DIR")
    forms, model = _forms_of_parts(family), _Base(base, family.denoiser_part)
    with _opened(path) as file, beside(output) as unfinished:
        file.refuse_other_objective(model)
        prefixes = {part: file.find(model, part, form, family) for part, form in forms.items()}
        found = {part: prefix for part, prefix in prefixes.items() if prefix is not None}
        copy_model(base, unfinished, lambda entry: not model.keeps(entry, found), follow_links=follow_links)
        num_tensors = {}
        for part, prefix in found.items():
            state = file.read_part(model, part, forms[part], prefix)
            save_file(state, unfinished / part / model.weights_file(part), metadata={"format": "pt"})
            num_tensors[part] = len(state)
            del state  # one part at a time is in memory
        unused = file.require_whole_denoiser(found[family.denoiser_part])
        move(unfinished, output)
    from_base = tuple(part for part in model.parts_with_weights() if part not in found)
    return ImportedCheckpoint(output, num_tensors, from_base, file.dtypes(), unused)


class _Base:
    """The model folder that the file was made from."""

    def __init__(self, folder: Path, denoiser_part: str) -> None:
        paths = (path.relative_to(folder).as_posix() for pattern in ("*", "*/*") for path in folder.glob(pattern))
        index = read_json(folder / PIPELINE_INDEX)
        self._folder = folder
        self._files = [Path(path) for path in needed_files(paths, index, denoiser_part)]

    def config(self, part: str) -> dict[str, Any]:
        name = "scheduler_config.json" if part == "scheduler" else "config.json"
        return read_json(self._folder / part / name)

    def keeps(self, entry: Path, replaced: Mapping[str, str]) -> bool:
        """Whether a file or folder is also the new model's."""
        inside = entry.relative_to(self._folder)
        if entry.is_dir():
            return any(inside in path.parents for path in self._files)
        return inside in self._files and not (inside.parent.name in replaced and inside.name.endswith(_WEIGHTS))

    def parts_with_weights(self) -> list[str]:
        return sorted({path.parent.name for path in self._files if path.suffix == ".safetensors" and path.parent.name})

    def shapes(self, part: str) -> dict[str, Sequence[int]]:
        """Returns the shapes of the weights in a part's files, without what only counts positions."""
        shapes: dict[str, Sequence[int]] = {}
        for path in self._weights(part):
            with open_tensors(self._folder / path) as tensors:
                slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
                shapes |= {name: one.get_shape() for name, one in slices.items() if not _counts(name, one.get_dtype())}
        if not shapes:
            folder = self._folder / part
            raise Refused(f"{folder} holds no .safetensors file. Choose a base whose weights are in this format.")
        return shapes

    def weights_file(self, part: str) -> str:
        """Returns the name that libraries look for: transformers and diffusers have one each."""
        is_transformers = any(path.name.startswith("model") for path in self._weights(part))
        return "model.safetensors" if is_transformers else "diffusion_pytorch_model.safetensors"

    def _weights(self, part: str) -> list[Path]:
        return [path for path in self._files if path.parent.name == part and path.suffix == ".safetensors"]


@dataclass
class _File:
    """An open checkpoint, and which of its tensors were read."""

    path: Path
    tensors: Any
    names: frozenset[str]
    used: dict[str, str] = field(default_factory=dict)
    """The dtypes of the tensors that were read, by name."""

    def refuse_other_objective(self, base: _Base) -> None:
        """Raises if the file is marked as trained on another objective than the base's scheduler says."""
        marks = [says for name, says in _MARKS.items() if name in self.names]
        is_same = marks == [_MARKS["v_pred"]] and base.config("scheduler").get("prediction_type") == "v_prediction"
        if marks and not is_same:
            raise Refused(
                f"{self.path} is marked as a model that {' and '.join(marks)}, which its base does not. Choose a base "
                "with the same objective: --base MODEL"
            )

    def find(self, base: _Base, part: str, form: FilePart, family: TrainableFamily) -> str | None:
        """Returns the prefix of a part's tensors, or None if the file does not have this part."""
        layout = form.layout(base.config(part))
        place = next(filter(None, map(layout.place, map(_name_in_layout, base.shapes(part)))), None)
        is_denoiser = part == family.denoiser_part
        # The first programs for Stable Diffusion left out the name of the text encoder's inner model.
        prefixes = _DENOISER_PREFIXES if is_denoiser else (form.prefix, form.prefix.removesuffix("text_model."))
        for prefix in prefixes:
            if place is not None and prefix + place.name in self.names:
                return prefix
        if is_denoiser:
            raise Refused(
                f"{self.path} holds no {family.name} model like the base; its tensors are named like "
                f"{_shown(sorted(self.names))}. Choose the base that it was made from: --base MODEL"
            )
        beginning = form.prefix.partition(".")[0] + "."
        if others := sorted(name for name in self.names if name.startswith(beginning) and not name.endswith("_ids")):
            raise Refused(f"{self.path} holds a {part} in a layout that cannot be read: {_shown(others)}")
        return None

    def read_part(self, base: _Base, part: str, form: FilePart, prefix: str) -> dict[str, Tensor]:
        """Returns the tensors of a part under the names of the base's files."""
        shapes = base.shapes(part)
        names = {_name_in_layout(name): name for name in shapes}
        wanted = {inner: shapes[name] for inner, name in names.items()}
        state = from_original(wanted, form.layout(base.config(part)), lambda name: self._read(prefix + name))
        return {names[inner]: tensor for inner, tensor in state.items()}

    def require_whole_denoiser(self, prefix: str) -> tuple[str, ...]:
        """Returns what was not read; raises if some of it belongs to the denoiser, which has more layers than the
        base's.
        """
        unused = sorted(self.names - self.used.keys())
        own = [name for name in unused if name.startswith(prefix) and "." in name]
        if more := [name for name in own if name.partition(".")[0] not in _OTHER_PARTS or prefix]:
            raise Refused(
                f"{self.path} has {len(more):,} tensors that the base does not have: {_shown(more)}. Choose the base "
                "that it was made from: --base MODEL"
            )
        return tuple(unused)

    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for dtype, _ in Counter(self.used.values()).most_common())

    def _read(self, name: str) -> Tensor:
        if name not in self.names:
            raise Refused(f"{self.path} has no tensor {name}. Is the base of another version or size?")
        dtype = self.tensors.get_slice(name).get_dtype()
        if dtype not in _FLOATS:
            # The numbers of a quantised tensor mean nothing without their scales.
            raise Refused(
                f"{name} of {self.path} is in {dtype}. Import a file in fp16, bf16 or fp32; to train on a "
                "quantised base, set quantize.denoiser."
            )
        self.used[name] = dtype
        tensor: Tensor = self.tensors.get_tensor(name)
        return tensor


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    if path.suffix.lower() not in _SUFFIXES:
        raise Refused(
            f"{path} is not a .safetensors file. Pickled checkpoints can run code when loaded and are refused; most "
            "are also published as .safetensors."
        )
    with open_tensors(path) as tensors:
        yield _File(path, tensors, frozenset(tensors.keys()))


def _forms_of_parts(family: TrainableFamily) -> Mapping[str, FilePart]:
    """Returns the parts that a file of this family may have."""
    form = single_file(family.name)
    if form is not None:
        return form.parts
    layout = original_layout(family.name, family.architecture.denoiser)
    if layout is None:
        raise Refused(
            f"The original layout of {family.name} models is not known, so a file of one cannot be read. Use a model "
            "in the diffusers layout: a folder, or a repository of the Hub."
        )
    return {family.denoiser_part: FilePart(lambda _: layout)}


def _counts(name: str, dtype: str) -> bool:
    return dtype in _COUNTING or name.endswith("position_ids")


def _name_in_layout(name: str) -> str:
    """Returns the name that layouts have for a tensor of the base: without the inner model of a text encoder, and as
    diffusers names it today.
    """
    return _FORMER_NAME.sub(lambda found: _FORMER[found[0]], name.removeprefix("text_model."))


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_SHOWN]) + (", ..." if len(names) > _NUM_SHOWN else "")
