"""Quantised base: frozen weights in 8 or 4 bits."""

from typing import Annotated, Literal

from foretune.choices.section import FORMS_STEP, Section

DenoiserNumbers = Literal["none", "int8", "float8", "float8-dynamic", "float8-training", "nf4", "int8-bnb"]
EncoderNumbers = Literal["none", "int8", "float8", "nf4", "int8-bnb"]


def sampled_numbers(numbers: DenoiserNumbers) -> DenoiserNumbers:
    """Returns the numbers of the weights that a model is sampled with.

    float8-training quantises products, not weights: nothing of it is left in a model that only samples.
    """
    return "none" if numbers == "float8-training" else numbers


class Quantize(Section):
    """Quantised base: which parts are quantised, how, and by which library."""

    denoiser: Annotated[DenoiserNumbers, FORMS_STEP] = "none"
    """Quantisation of the denoiser's frozen weights, for adapters. int8, float8: 8-bit weights, dequantised for each
    matrix product (torchao). float8-dynamic: also quantises the inputs and multiplies in 8 bits (torchao). nf4: 4-bit
    weights, int8-bnb: 8-bit weights and products (bitsandbytes). float8-training leaves the weights as they are and
    multiplies in 8 bits (torchao); it works with every method."""
    text_encoders: EncoderNumbers = "none"
    """Quantisation of the text encoders, with the same meanings."""
    keep: Annotated[tuple[str, ...] | None, FORMS_STEP] = None
    """Layers that are not quantised, by parts of their module names; [] quantises all. Left out: the layers outside of
    the repeated blocks (input and output projections, timestep and text embeddings)."""
