"""How a model samples: the same choices for `sample`, `evaluate`, `bench --inference` and its variants."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from foretune.choices.quantize import DenoiserNumbers
from foretune.choices.training import CompileMode, Precision
from foretune.core.errors import Refused, UnknownName, UserError


@dataclass(frozen=True, kw_only=True)
class InferenceForm:
    """How a model samples. None is as the run has it, or without a run as usual on the device."""

    precision: Precision | None = None
    quantize: DenoiserNumbers | None = None
    """Numbers of the denoiser's weights."""
    compile: CompileMode = "off"
    merge: bool = False
    """Adds the adapter to the weights instead of computing it beside them."""
    batch_size: int | None = None
    """Images, or denoising steps of so many images, in one call of the model."""
    devices: int = 1
    """Each holds the whole model and makes its share of the images."""


@dataclass(frozen=True, kw_only=True)
class MeasuredForm(InferenceForm):
    """How a model samples while its speed is measured: nothing is left to the run or the device."""

    precision: Precision = "fp32"
    quantize: DenoiserNumbers = "none"
    batch_size: int = 1


@dataclass(frozen=True, kw_only=True)
class VariantChoices:
    """How each variant of a comparison is measured."""

    steps: int = 20
    """Denoising steps of each repeat, on every device."""
    repeat: int = 3
    images: int = 2
    """Images of each variant, from the same seeds, that are compared with those of the first; 0 for none."""
    inference_steps: int = 20
    """Denoising steps of an image."""
    size: int | str | None = None
    frames: int | None = None


VARIANT_KEYS: Mapping[str, str] = {
    "precision": "precision",
    "quantize": "quantize",
    "compile": "compile",
    "merge": "merge",
    "adapter": "adapter",
    "batch": "batch_size",
    "devices": "devices",
}
"""Settings of a variant, with the fields that they set."""


def form_of(choices: InferenceForm) -> dict[str, Any]:
    """The fields of `InferenceForm`, from what has more of them."""
    return {field.name: getattr(choices, field.name) for field in fields(InferenceForm)}


_VALUES: Mapping[str, tuple[Any, ...]] = {
    "precision": get_args(Precision),
    # float8-training quantises products while a model trains, not weights.
    "quantize": tuple(kind for kind in get_args(DenoiserNumbers) if kind != "float8-training"),
    "compile": get_args(CompileMode),
    "merge": (False, True),
}
_COUNTS = {"batch_size": "number of images", "devices": "number of devices"}


def check_form(form: InferenceForm, *, of: str = "", has_adapter_file: bool = False) -> None:
    """Raises for values that do not exist or do not go together. `of` ends a name: " of the variant x"."""
    for name, known in _VALUES.items():
        value = getattr(form, name)
        if value is not None and value not in known:
            raise UnknownName(f"{name}{of}", str(value), tuple(map(str, known)))
    for name, what in _COUNTS.items():
        value = getattr(form, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            key = name.removesuffix("_size")
            raise UserError(f"{key}{of}: {value!r} is not a {what}. Write {key}=2")
    if form.merge and has_adapter_file and form.quantize not in (None, "none"):
        raise Refused(
            f"An adapter file cannot be merged into quantised weights{of}. Leave out one of merge and quantize, or "
            "export a merged model and quantise that: foretune export RUN --merge"
        )
