"""What a particular card does badly or not at all."""

from collections.abc import Iterable

from foretune.catalog.devices import Device
from foretune.catalog.number_formats import multiplies
from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import Objection, warning
from foretune.choices.objections.quantization import FLOAT8_PRODUCTS
from foretune.choices.training import Train


def hardware_objections(experiment: Experiment, device: Device) -> Iterable[Objection]:
    """Warnings: a plan for many cards answers for all of them, and says here which of them lacks what."""
    family = device.arch.split()[0]
    if experiment.train.precision == "bf16" and multiplies(device, "bf16") is False:
        yield warning(emulated_bf16(experiment.train, f"{device.name} ({family})", device))
    products = experiment.quantize.denoiser
    if products in FLOAT8_PRODUCTS and device.kind == "cuda" and multiplies(device, "fp8") is False:
        yield warning(
            f"quantize.denoiser: {products} multiplies in float8, which needs Ada, Hopper or newer; on {device.name} "
            f"({family}) the first step stops with an error. Use quantize.denoiser=float8, which stores weights in "
            "float8 and multiplies in bf16, or quantize.denoiser=int8"
        )


def emulated_bf16(train: Train, card: str, device: Device | None) -> str:
    """Returns the warning for bf16 on a card without units for it. `device` is its row, where the catalogue has one."""
    rate = ""
    if device is not None and device.fp16_dense_tflops is not None and device.fp32_tflops is not None:
        rate = f" ({device.fp32_tflops:g} instead of {device.fp16_dense_tflops:g} TFLOPS at the most)"
    also = " with train.weight_dtype=fp32" if train.weight_dtype == "bf16" else ""
    return (
        f"train.precision: {card} has no bf16 units, so PyTorch emulates bf16 at the rate of fp32{rate}. "
        f"Use train.precision=fp16{also}, which needs loss scaling, or train.precision=fp32{also}"
    )
