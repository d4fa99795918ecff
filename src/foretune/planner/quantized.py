"""Weights in fewer bits: how many bytes they take, as `step.quantizing` makes them."""

from collections.abc import Mapping

from foretune.catalog import ModelComponent
from foretune.choices.quantize import DenoiserNumbers, EncoderNumbers

FEWER_BITS: frozenset[DenoiserNumbers] = frozenset({"int8", "float8", "float8-dynamic", "nf4", "int8-bnb"})
"""Choices that keep a base in fewer bits; float8-training only multiplies in them."""

_SCALE_BYTES = 4
_NF4_BLOCK = 64
_NF4_SCALE_BLOCK = 256


def bytes_per_weight(kind: EncoderNumbers, num_inputs: int) -> float:
    """Of a matrix with so many inputs, its scales included.

    8 bits: one fp32 scale for each row. nf4: half a byte, and for each 64 weights a scale of one byte; for each 256 of
    these an fp32 one. The few hundred bytes that nf4 has once for each layer are left out.
    """
    if kind == "nf4":
        return 0.5 + (1 + _SCALE_BYTES / _NF4_SCALE_BLOCK) / _NF4_BLOCK
    return 1 + _SCALE_BYTES / num_inputs


def dense_over_bits(kind: DenoiserNumbers, bytes_per_dense_weight: int) -> int:
    """How many times the bytes of its bits a layer has as it is multiplied with; 0 where it is as it is anyhow."""
    if kind not in FEWER_BITS:
        return 0
    return bytes_per_dense_weight * (2 if kind == "nf4" else 1)


def quantized_share(kind: EncoderNumbers, row: ModelComponent, bytes_before: int) -> float:
    """Bytes of a text encoder over what they were with `bytes_before` for each weight.

    All of its weights but the table of tokens are taken to be those of linear layers with as many inputs as a token has
    numbers; norms, positions and biases are too few to matter.
    """
    text = _text_config(row.config)
    width = int(text.get("d_model") or text["hidden_size"])
    num_linear = row.num_params - int(text["vocab_size"]) * width
    now = num_linear * bytes_per_weight(kind, width) + (row.num_params - num_linear) * bytes_before
    return now / (row.num_params * bytes_before)


def largest_dense_bytes(row: ModelComponent, bytes_per_dense_weight: int) -> int:
    """The largest linear layer of a text encoder as it is multiplied with: a copy that is made for each product."""
    text = _text_config(row.config)
    width = int(text.get("d_model") or text["hidden_size"])
    inner = int(text.get("d_ff") or text["intermediate_size"])
    return width * inner * bytes_per_dense_weight


def _text_config(config: Mapping[str, object]) -> Mapping[str, int]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config  # type: ignore[return-value]
