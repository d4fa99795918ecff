"""Names that other programs use: one module for each family that ComfyUI, kohya's trainers or single files know.

A family's module may have `COMFYUI` and `KOHYA`, the forms of adapters; `kohya_metadata`, what goes with
the latter, by the denoiser's configuration; `layout`, the original names of its layers; and `SINGLE_FILE`, the parts of
its pipeline that are published in one file. What is not there is not supported.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from foretune.catalog.tool_names.forms import LOW_RANK, AdapterForm, SingleFile
from foretune.catalog.tool_names.layout import OriginalLayout, OriginalPlace

__all__ = [
    "AdapterForm",
    "ExportFormat",
    "OriginalLayout",
    "OriginalPlace",
    "SingleFile",
    "adapter_form",
    "adapter_metadata",
    "original_layout",
    "single_file",
    "why_no_adapter",
    "why_no_single_file",
]

ExportFormat = Literal["diffusers", "comfyui", "kohya", "single-file"]
_TOOLS = {"comfyui": "ComfyUI", "kohya": "kohya's trainers"}


def _fact(family: str, name: str) -> Any:
    module = f"{__name__}.{family}"
    return getattr(import_module(module), name, None) if find_spec(module) is not None else None


def adapter_form(family: str, file_format: str) -> AdapterForm | None:
    """Returns the form in which the tool reads adapters of this family; None if it reads none."""
    form: AdapterForm | None = _fact(family, file_format.upper())
    return form


def adapter_metadata(family: str, file_format: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the tool writes about the base model into its own files."""
    of_config = _fact(family, f"{file_format}_metadata")
    return {} if of_config is None else of_config(config)


def original_layout(family: str, config: Mapping[str, Any]) -> OriginalLayout | None:
    """Returns the original names of the layers of a denoiser with this configuration; None if they are not known."""
    of_config = _fact(family, "layout")
    return None if of_config is None else of_config(config)


def single_file(family: str) -> SingleFile | None:
    """Returns what one file of the original layout holds; None if diffusers reads no such file."""
    found: SingleFile | None = _fact(family, "SINGLE_FILE")
    return found


def why_no_adapter(family: str, kind: str, file_format: str) -> str | None:
    """Returns why the tool cannot load this kind of adapter of this family; None if it can."""
    form = adapter_form(family, file_format)
    if form is None:
        return f"the names that {_TOOLS[file_format]} would have for layers of {family} are not known"
    if kind in form.kinds:
        return None
    if kind == "oft":
        return f"peft's OFT rotates the inputs of a layer, the OFT of {_TOOLS[file_format]} its outputs"
    if kind == "lokr" and form.is_original and "loha" in form.kinds:
        return f"{form.program} keeps q, k and v of {family} in one matrix, and stacked LoKr updates are no LoKr"
    if file_format == "kohya" and form.kinds == LOW_RANK:
        return f"{form.program} loads LoRA only"
    return f"{form.program} cannot load {kind}"


def why_no_single_file(family: str, config: Mapping[str, Any] | None = None) -> str | None:
    """Returns why there is no single file of this family, or of such a denoiser; None if there is one."""
    form = single_file(family)
    if form is None:
        return f"single files of {family} models are not supported"
    wrong = {} if config is None else {key: size for key, size in form.sizes.items() if config.get(key) != size}
    if wrong:
        sizes = " and ".join(f"{key} {size}" for key, size in wrong.items())
        return f"diffusers reads models of {family} from one file only with {sizes}, so that it could not be verified"
    return None
