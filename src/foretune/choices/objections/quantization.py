"""A base in fewer bits: what goes with what."""

from collections.abc import Iterable

from foretune.catalog import FamilyFacts
from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import DeviceType, Objection, refused, warning
from foretune.choices.quantize import Quantize

_BITSANDBYTES = ("nf4", "int8-bnb")
FLOAT8_PRODUCTS = ("float8-dynamic", "float8-training")


def quantization_objections(
    experiment: Experiment, facts: FamilyFacts, device_type: DeviceType | None
) -> Iterable[Objection]:
    choice = experiment.quantize
    yield from _without_effect(choice, facts)
    yield from _on_device(choice, device_type)
    if choice.denoiser == "none":
        return
    if experiment.method.kind == "full" and choice.denoiser != "float8-training":
        yield refused(
            f"quantize.denoiser: weights in {choice.denoiser} cannot be trained, and method.kind=full trains all. "
            "Nearest: method.kind=lora, or quantize.denoiser=float8-training, which keeps the weights as they are"
        )
    if choice.denoiser == "int8-bnb" and experiment.train.precision != "fp16":
        yield warning(
            "quantize.denoiser: int8-bnb rounds the inputs of each layer by way of fp16, and on GPUs its outputs, too, "
            "so that values above 65504 become infinite. quantize.denoiser=int8 has no such limit"
        )
    if facts.is_mostly_convolutions:
        yield warning(
            f"quantize.denoiser: most weights of a {facts.name} model are those of convolutions, which stay as they are"
        )


def _on_device(choice: Quantize, device_type: DeviceType | None) -> Iterable[Objection]:
    kinds = {"quantize.denoiser": choice.denoiser, "quantize.text_encoders": choice.text_encoders}
    for key, kind in kinds.items():
        if device_type == "mps" and kind.startswith("float8"):
            yield refused(f"{key}: {kind} needs 8-bit floating-point numbers, which mps has not. Nearest: {key}=int8")
        if device_type == "mps" and kind in _BITSANDBYTES:
            yield refused(
                f"{key}: on mps, bitsandbytes compiles its code for {kind} or downloads it from a hub, and neither was "
                f"tried. Nearest: {key}=int8"
            )
    if choice.denoiser in FLOAT8_PRODUCTS and device_type == "rocm":
        yield refused(
            f"quantize.denoiser: {choice.denoiser} multiplies 8-bit numbers as NVIDIA GPUs have them; those of AMD's "
            "MI300 are of another kind. Nearest: quantize.denoiser=float8"
        )
    if choice.denoiser in FLOAT8_PRODUCTS and device_type == "cpu":
        yield warning(
            f"quantize.denoiser: on cpu the products of {choice.denoiser} are made in a wider type: rounded alike, and "
            "no faster"
        )


def _without_effect(choice: Quantize, facts: FamilyFacts) -> Iterable[Objection]:
    if choice.text_encoders != "none" and not facts.has_text:
        yield warning(f"quantize.text_encoders has no effect: {facts.name} models take no captions")
    if choice.denoiser == "none" and choice.keep is not None:
        yield warning("quantize.keep has no effect: quantize.denoiser is none")
