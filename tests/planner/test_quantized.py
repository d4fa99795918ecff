"""Text encoders in fewer bits: what is said of them without torch is what quantising them makes."""

import pytest
import torch

from foretune import catalog
from foretune.choices.quantize import EncoderNumbers
from foretune.planner.quantized import bytes_per_weight, largest_dense_bytes, quantized_share
from foretune.step.quantizing import quantize_encoder
from foretune.trace.components import component_on_meta

KINDS: tuple[EncoderNumbers, ...] = ("int8", "nf4", "int8-bnb")
MOST_OFF = 0.005


def test_bytes_of_a_weight_by_hand() -> None:
    """4096 x 4096 in nf4: half a byte each, a byte for each 64, four for each 16384."""
    num_weights = 4096 * 4096
    assert (
        bytes_per_weight("nf4", 4096) * num_weights == num_weights // 2 + num_weights // 64 + num_weights // 16384 * 4
    )
    assert bytes_per_weight("int8", 4096) * num_weights == num_weights + 4096 * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["clip-l-text", "t5-v1_1-xxl-encoder", "qwen3-4b"])
def test_shares_are_those_of_a_quantised_encoder(name: str, kind: EncoderNumbers) -> None:
    row = catalog.component(name)
    encoder = component_on_meta(row, torch.bfloat16)
    before = sum(parameter.nbytes for parameter in encoder.parameters())
    layers = [module for module in encoder.modules() if type(module) is torch.nn.Linear]
    assert largest_dense_bytes(row, 2) == max(layer.weight.nbytes for layer in layers)
    quantize_encoder(kind, encoder)
    after = sum(parameter.nbytes for parameter in encoder.parameters())
    assert quantized_share(kind, row, 2) == pytest.approx(after / before, abs=MOST_OFF)
    assert after < before
