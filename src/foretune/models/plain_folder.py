"""Model folders that others made: refused if a configuration asks the libraries to run or fetch code.

diffusers imports whatever library a `model_index.json` names; transformers downloads the code and the kernels that a
configuration names, and loads the adapter that lies in a folder from wherever its settings say. None of the models that
train here needs any of it.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from foretune.choices.model import PIPELINE_INDEX, read_json
from foretune.core.errors import Refused
from foretune.core.input_files import shown
from foretune.core.tensor_files import require_tensor_file

_LIBRARIES = frozenset({"diffusers", "transformers", "stable_diffusion"})
"""`stable_diffusion` is how early folders name diffusers' module with the safety checker."""
_NAMES_CODE = frozenset(
    {"auto_map", "custom_pipelines", "custom_pipeline", "custom_generate", "_target_", "kernel_config"}
)
_ALLOWS_CODE = frozenset({"trust_remote_code", "use_kernels", "allow_all_kernels"})
_NAMES_KERNEL = ("attn_implementation", "attn_implementation_internal", "attention_backend")
"""Endings of settings that name one of transformers' own forms of attention, or a repository with a kernel."""
_CONFIGS = (
    *("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json"),
    *(
        "scheduler_config.json",
        "generation_config.json",
        "image_processor_config.json",
        "video_preprocessor_config.json",
    ),
)
_ADAPTER = "adapter_config.json"
_INDEX = "*.safetensors.index.json"
_LONGEST_SHOWN = 80


def require_plain_pipeline(folder: Path) -> None:
    """Raises `Refused` for a pipeline's folder with code, named in its index or in the configuration of a part."""
    index_file = folder / PIPELINE_INDEX
    index = read_json(index_file)
    if not isinstance(index.get("_class_name"), str) or not index["_class_name"].isidentifier():
        raise Refused(
            f"{shown(index_file)} has {_shown(index.get('_class_name'))} as its pipeline; only classes of diffusers "
            "are loaded, by their name. Use a folder with a standard pipeline."
        )
    for key, value in index.items():
        if key.startswith("_"):
            continue
        if PurePosixPath(key).name != key or key in ("", "..") or "\\" in key:
            raise Refused(
                f"{shown(index_file)} names a part {shown(key)!r}, which is outside of the folder. Remove it."
            )
        library = value[0] if isinstance(value, list) and value else None
        if library is not None and library not in _LIBRARIES:
            raise Refused(
                f"{shown(index_file)} takes {shown(key)} from {_shown(library)}. Parts are only loaded from diffusers "
                "and transformers, because a folder could name any code. Use a folder with standard parts."
            )
    require_plain(folder)
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        require_plain(part)


def require_plain(folder: Path) -> None:
    """The same for a folder with one model or tokenizer."""
    for name in (*_CONFIGS, PIPELINE_INDEX):
        if (folder / name).is_file():
            _refuse_code(read_json(folder / name), folder / name)
    if (folder / _ADAPTER).exists():
        raise Refused(
            f"{shown(folder / _ADAPTER)} would make transformers load an adapter beside the model, from wherever the "
            "file says. Remove it."
        )
    for weights in sorted(folder.glob("*.safetensors")):
        require_tensor_file(weights)
    for index in sorted(folder.glob(_INDEX)):
        _refuse_files_elsewhere(read_json(index), index)


def _refuse_code(config: dict[str, Any], path: Path) -> None:
    for key, value in _settings(config):
        is_hub_kernel = key.endswith(_NAMES_KERNEL) and isinstance(value, str) and any(map(value.__contains__, "/:@"))
        if value and (key in _NAMES_CODE or key in _ALLOWS_CODE or is_hub_kernel):
            raise Refused(
                f"{shown(path)} sets {key} to {_shown(value)}, which asks for code from the model's publisher. It "
                "could do anything on this machine, so the model is not loaded. Use a version of the model without it."
            )

        if key == "transformers_weights" and value:
            _refuse_file(str(value), path)


def _settings(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields every key with its value, however deep. Parsing has limited the depth."""
    left = [value]
    while left:
        inner = left.pop()
        if isinstance(inner, dict):
            yield from inner.items()
            left.extend(inner.values())
        elif isinstance(inner, list):
            left.extend(inner)


def _refuse_files_elsewhere(index: dict[str, Any], path: Path) -> None:
    """The weights of a part lie in its folder, in safetensors."""
    weights = index.get("weight_map")
    if not isinstance(weights, dict):
        raise Refused(f"{shown(path)} has no weight_map, so the files of the model are not known. Download it again.")
    for name in sorted({str(file) for file in weights.values()}):
        _refuse_file(name, path)


def _refuse_file(name: str, path: Path) -> None:
    is_inside = PurePosixPath(name).name == name and "\\" not in name
    if not is_inside or not name.endswith(".safetensors"):
        raise Refused(
            f"{shown(path)} names {_shown(name)} as a file of weights; only .safetensors files of the same folder are "
            "read. Download the model again from its publisher."
        )


def _shown(value: Any) -> str:
    text = shown(str(value))
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "...")
