"""Frozen weights in fewer bits. One file a backend; imported when it is asked for."""

from foretune.step.quantizing.applying import Quantized, check_quantization, quantize_denoiser, quantize_encoder
from foretune.step.quantizing.layer import QuantizedLinear

__all__ = ["Quantized", "QuantizedLinear", "check_quantization", "quantize_denoiser", "quantize_encoder"]
