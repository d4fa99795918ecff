"""Bytes of quantised weights, as `step.quantizing` stores them."""

from collections.abc import Mapping

from foretune.catalog import ModelComponent
from foretune.choices.quantize import DenoiserNumbers, EncoderNumbers

FEWER_BITS: frozenset[DenoiserNumbers] = frozenset({"int8", "float8", "float8-dynamic", "nf4", "int8-bnb"})
"""Settings that store a quantised base; float8-training only multiplies in float8."""

_SCALE_BYTES = 4
_NF4_BLOCK = 64
_NF4_SCALE_BLOCK = 256


def bytes_per_weight(kind: EncoderNumbers, num_inputs: int) -> float:
    """Returns the bytes per weight of a matrix with this number of inputs, including scales.

    8 bits: one fp32 scale per row. nf4: half a byte, plus a one-byte scale per 64 weights and an fp32 one per 256 of
    these. The few hundred bytes that nf4 has once per layer are left out.
    """
    if kind == "nf4":
        return 0.5 + (1 + _SCALE_BYTES / _NF4_SCALE_BLOCK) / _NF4_BLOCK
    return 1 + _SCALE_BYTES / num_inputs


def dense_over_bits(kind: DenoiserNumbers, bytes_per_dense_weight: int) -> int:
    """Returns the size of a dequantised layer over its quantised size; 0 if it is not dequantised."""
    if kind not in FEWER_BITS:
        return 0
    return bytes_per_dense_weight * (2 if kind == "nf4" else 1)


def quantized_share(kind: EncoderNumbers, row: ModelComponent, bytes_before: int) -> float:
    """Returns the bytes of a quantised text encoder over those with `bytes_before` per weight.

    All weights except the token embedding are assumed to be in linear layers with as many inputs as the hidden size;
    norms, positions and biases are negligible.
    """
    text = _text_config(row.config)
    width = int(text.get("d_model") or text["hidden_size"])
    num_linear = row.num_params - int(text["vocab_size"]) * width
    now = num_linear * bytes_per_weight(kind, width) + (row.num_params - num_linear) * bytes_before
    return now / (row.num_params * bytes_before)


def largest_dense_bytes(row: ModelComponent, bytes_per_dense_weight: int) -> int:
    """Returns the bytes of a text encoder's largest linear layer when dequantised for a product."""
    text = _text_config(row.config)
    width = int(text.get("d_model") or text["hidden_size"])
    inner = int(text.get("d_ff") or text["intermediate_size"])
    return width * inner * bytes_per_dense_weight


def _text_config(config: Mapping[str, object]) -> Mapping[str, int]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config  # type: ignore[return-value]
