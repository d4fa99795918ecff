"""Quantised frozen weights. One file per backend, imported when requested."""

from foretune.step.quantizing.applying import (
    Quantized,
    Quantizer,
    check_quantization,
    denoiser_quantizer,
    quantize_denoiser,
    quantize_encoder,
)
from foretune.step.quantizing.layer import QuantizedLinear

__all__ = [
    "Quantized",
    "QuantizedLinear",
    "Quantizer",
    "check_quantization",
    "denoiser_quantizer",
    "quantize_denoiser",
    "quantize_encoder",
]
