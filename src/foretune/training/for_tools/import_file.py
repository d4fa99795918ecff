"""A checkpoint of one file, as people share them, becomes a folder in the diffusers layout that can be trained.

Only tensors are read from the file. Everything else (configurations, tokenizers, parts that the file lacks) is the base
model's. No model is loaded: names and shapes of the base's own files say what must be there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foretune.catalog.tool_names import original_layout, single_file
from foretune.catalog.tool_names.forms import FilePart
from foretune.choices.model import read_json
from foretune.core.errors import Refused, UserError
from foretune.core.input_files import open_input
from foretune.core.output_files import beside, move
from foretune.models.copying import copy_model
from foretune.models.trainable import TrainableFamily
from foretune.training.for_tools.original import from_original

_MOST_FILE_BYTES = 2**50
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_OTHER_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "")
"""Of denoisers, in files of different programs."""
_FLOATS = ("F32", "F16", "BF16")
_COUNTING = ("I64", "I32")
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
    """Of the tensors of the file, the most frequent first."""
    unused: tuple[str, ...]
    """Tensors of the file that no part of the pipeline has."""

    def __str__(self) -> str:
        """What `foretune import-checkpoint` prints."""
        parts = ", ".join(f"{part} ({count:,} tensors)" for part, count in self.num_tensors.items())
        lines = [f"From the file, in {' and '.join(self.dtypes)}: {parts}"]
        if self.from_base:
            lines.append(f"From the base model: {', '.join(self.from_base)}")
        if self.unused:
            lines.append(f"Not used: {len(self.unused):,} tensors, such as {_shown(self.unused)}")
        return "\n".join(lines)


def import_file(
    path: Path, family: TrainableFamily, base: Path, output: Path, *, follow_links: bool = False
) -> ImportedCheckpoint:
    """Writes the base's folder with the weights of the file in it.

    Raises:
        Refused: the file is no checkpoint of this family and size, or is quantised or pickled.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is not an empty folder. Choose another: --output DIR")
    forms = _forms_of_parts(family)
    with _opened(path) as file, beside(output) as unfinished:
        dtypes = file.require_floats()
        prefixes = {part: file.find(base / part, form) for part, form in forms.items()}
        found = {part: prefix for part, prefix in prefixes.items() if prefix is not None}
        if family.denoiser_part not in found:
            raise Refused(
                f"{path} holds no {family.name} model like the base; its tensors are named like "
                f"{_shown(sorted(file.names))}. Choose the base that it was made from: --base MODEL"
            )

        def leaves_out(entry: Path) -> bool:
            if entry.parent == base:
                return entry.name.startswith(".") or not (entry.is_dir() or entry.suffix == ".json")
            return entry.parent.name in found and entry.name.endswith(_WEIGHTS)

        copy_model(base, unfinished, leaves_out, follow_links=follow_links)
        num_tensors = {}
        for part, prefix in found.items():
            # One part at a time is in memory.
            state = file.read_part(base / part, forms[part], prefix)
            save_file(state, unfinished / part / _weights_file(base / part), metadata={"format": "pt"})
            num_tensors[part] = len(state)
        move(unfinished, output)
    from_base = tuple(part.name for part in sorted(base.iterdir()) if _has_weights(part) and part.name not in found)
    return ImportedCheckpoint(output, num_tensors, from_base, dtypes, tuple(sorted(file.names - file.used)))


@dataclass
class _File:
    """An open checkpoint, and which of its tensors were read."""

    path: Path
    tensors: Any
    names: frozenset[str]
    used: set[str] = field(default_factory=set)

    def require_floats(self) -> tuple[str, ...]:
        """Returns the dtypes of the weights; raises for a quantised file: its numbers mean nothing without scales."""
        counts = Counter(self.tensors.get_slice(name).get_dtype() for name in self.names)
        dtypes = tuple(dtype for dtype, _ in counts.most_common() if dtype not in _COUNTING)
        if others := [dtype for dtype in dtypes if dtype not in _FLOATS]:
            raise Refused(
                f"{self.path} is quantised ({', '.join(others)}). Import the file in fp16 or bf16; to train on fewer "
                "bits, set quantize.denoiser."
            )
        return dtypes

    def find(self, folder: Path, form: FilePart) -> str | None:
        """Returns the prefix of a part's tensors, or None if the file does not have this part."""
        layout = form.layout(_config(folder))
        place = next(filter(None, map(layout.place, map(_inner, _shapes(folder)))), None)
        prefixes = dict.fromkeys((form.prefix, *_OTHER_PREFIXES) if form.prefix in _OTHER_PREFIXES else (form.prefix,))
        return next((prefix for prefix in prefixes if place is not None and prefix + place.name in self.names), None)

    def read_part(self, folder: Path, form: FilePart, prefix: str) -> dict[str, Tensor]:
        """Returns the tensors of a part under the names of the base's files."""

        def read(name: str) -> Tensor:
            if prefix + name not in self.names:
                raise Refused(f"{self.path} has no tensor {prefix}{name}. Is the base of another version or size?")
            self.used.add(prefix + name)
            tensor: Tensor = self.tensors.get_tensor(prefix + name)
            return tensor

        shapes = _shapes(folder)
        names = {_inner(name): name for name in shapes}
        state = from_original(
            {inner: shapes[name] for inner, name in names.items()}, form.layout(_config(folder)), read
        )
        return {names[inner]: tensor.clone() for inner, tensor in state.items()}


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    if path.suffix != ".safetensors":
        raise Refused(
            f"{path} is not a .safetensors file. Pickled checkpoints can run code when loaded and are refused; most "
            "are also published as .safetensors."
        )
    open_input(path, _MOST_FILE_BYTES).close()
    try:
        with safe_open(path, framework="pt") as tensors:
            yield _File(path, tensors, frozenset(tensors.keys()))
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {error}") from error


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


def _shapes(folder: Path) -> dict[str, Sequence[int]]:
    """Returns the shapes of the weights in a part's files; whole numbers among them only count positions."""
    shapes: dict[str, Sequence[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
            shapes |= {name: one.get_shape() for name, one in slices.items() if one.get_dtype() not in _COUNTING}
    if not shapes:
        raise Refused(f"{folder} holds no .safetensors file. Choose a base whose weights are in this format.")
    return shapes


def _inner(name: str) -> str:
    """Returns the name of a tensor of a text encoder without that of its inner model, which the layouts leave out."""
    return name.removeprefix("text_model.")


def _config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")


def _has_weights(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.safetensors"))


def _weights_file(folder: Path) -> str:
    """Returns the name that libraries look for: transformers and diffusers have one each."""
    is_transformers = any(path.name.startswith("model") for path in folder.glob("*.safetensors"))
    return "model.safetensors" if is_transformers else "diffusion_pytorch_model.safetensors"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_SHOWN])
