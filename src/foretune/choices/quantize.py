"""Weights that do not change kept in fewer bits."""

from typing import Literal

from foretune.choices.section import Section

DenoiserNumbers = Literal["none", "int8", "float8", "float8-dynamic", "float8-training", "nf4", "int8-bnb"]
EncoderNumbers = Literal["none", "int8", "float8", "nf4", "int8-bnb"]
Derivative = Literal["lean", "torchao"]


class Quantize(Section):
    """Which parts of the base are kept in fewer bits, and by which backend."""

    denoiser: DenoiserNumbers = "none"
    """Frozen weights, so an adapter is what is trained: int8 and float8 are 8-bit weights that are widened for each
    product (torchao); float8-dynamic also rounds the inputs and multiplies in 8 bits (torchao); nf4 is 4-bit,
    int8-bnb 8-bit with 8-bit products (bitsandbytes). float8-training keeps all weights as they are and multiplies in
    8 bits (torchao): it goes with every method."""
    text_encoders: EncoderNumbers = "none"
    """The same for text encoders."""
    keep: tuple[str, ...] | None = None
    """Parts of module names whose layers stay as they are; [] quantises all. Left out: the layers outside of the
    repeated blocks, which are the first and last projections and the embeddings of time and text."""
    derivative: Derivative = "lean"
    """How gradients go through int8, float8 and float8-dynamic layers. lean keeps the bits alone and makes dense
    weights again in the backward pass; torchao differentiates that library's operators, as other programs do, and
    keeps dense copies of weights (int8, float8) or four copies of each input (float8-dynamic)."""
