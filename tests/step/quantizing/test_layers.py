"""Each backend's layer against the dense layer it stands for."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretune.step.quantizing.applying import BACKENDS
from foretune.step.quantizing.float8_products import as_on_gpus, rounded, scaled_product
from foretune.trace.making import TORCHAO_AUTOGRAD

_BY_TORCHAO = " by torchao"
LAYERS = [*BACKENDS, *(kind + _BY_TORCHAO for kind in TORCHAO_AUTOGRAD)]
"""Those of Foretune, and those with which the steps of other trainers are recorded."""
WEIGHT_ONLY = ["int8", "float8", "nf4"]
ROUNDED_INPUTS = {"int8-bnb": 0.01, "float8-dynamic": 0.03}
"""How far the answer may be from that of the dense weight, as a share of its size."""
WEIGHT_ERRORS = {"int8": 0.005, "float8": 0.027, "float8-dynamic": 0.03, "nf4": 0.1, "int8-bnb": 0.005}
NUM_INPUTS, NUM_OUTPUTS, NUM_ROWS = 96, 80, 24

PRECISIONS = [
    pytest.param(torch.float32, None, id="fp32"),
    pytest.param(torch.bfloat16, torch.bfloat16, id="bf16"),
    pytest.param(torch.float16, torch.float16, id="fp16"),
]


def dense_layer(dtype: torch.dtype = torch.float32, num_inputs: int = NUM_INPUTS) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(num_inputs, NUM_OUTPUTS, dtype=dtype).requires_grad_(requires_grad=False)


def quantised(kind: str, dense: nn.Linear) -> Any:
    layers = TORCHAO_AUTOGRAD if kind.endswith(_BY_TORCHAO) else BACKENDS
    return layers[kind.removesuffix(_BY_TORCHAO)].of(dense)


def answer_and_gradient(layer: Any, values: Tensor, autocast: torch.dtype | None) -> tuple[Tensor, Tensor]:
    values = values.clone().requires_grad_()
    with torch.autocast("cpu", dtype=autocast) if autocast is not None else nullcontext():
        out = layer(values)
    out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out))
    assert values.grad is not None
    return out.detach(), values.grad


def as_dense(layer: Any) -> nn.Linear:
    dense = dense_layer(layer.dense_dtype, layer.in_features)
    dense.weight.data, dense.bias.data = layer.weight.detach(), layer.bias.detach()
    return dense


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm() / b.float().norm())


def inputs(num_inputs: int = NUM_INPUTS, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, NUM_ROWS // 2, num_inputs, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
@pytest.mark.parametrize(("dtype", "autocast"), PRECISIONS)
@pytest.mark.parametrize("is_wide", [False, True], ids=["own-type", "fp32-in"])
def test_weight_only_is_exactly_the_dense_layer(kind, dtype, autocast, is_wide) -> None:
    layer = quantised(kind, dense_layer(dtype))
    values = inputs(dtype=torch.float32 if is_wide else dtype)
    out, gradient = answer_and_gradient(layer, values, autocast)
    expected_out, expected_gradient = answer_and_gradient(as_dense(layer), values, autocast)
    assert out.dtype == expected_out.dtype == (autocast or dtype)
    torch.testing.assert_close(out, expected_out, rtol=0, atol=0)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=0)


@pytest.mark.parametrize("kind", list(ROUNDED_INPUTS))
@pytest.mark.parametrize(("dtype", "autocast"), PRECISIONS)
def test_rounded_inputs_answer_nearly_and_differentiate_exactly(kind, dtype, autocast) -> None:
    layer = quantised(kind, dense_layer(dtype))
    out, gradient = answer_and_gradient(layer, inputs(), autocast)
    expected_out, expected_gradient = answer_and_gradient(as_dense(layer), inputs(), autocast)
    assert out.dtype == (autocast or torch.float32)
    assert 0 < distance(out, expected_out) < ROUNDED_INPUTS[kind]
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=0)


@pytest.mark.parametrize("is_trained", [False, True], ids=["frozen", "trained"])
@pytest.mark.parametrize(("dtype", "autocast"), PRECISIONS)
def test_float8_training_is_near_the_dense_layer(dtype, autocast, is_trained) -> None:
    dense = dense_layer(dtype).requires_grad_(is_trained)
    layer = quantised("float8-training", dense)
    assert layer.weight is dense.weight
    out, gradient = answer_and_gradient(layer, inputs(), autocast)
    own = None if dense.weight.grad is None else dense.weight.grad.clone()
    dense.weight.grad = None
    expected_out, expected_gradient = answer_and_gradient(dense, inputs(), autocast)
    assert out.dtype == expected_out.dtype
    assert 0 < distance(out, expected_out) < 0.05
    assert distance(gradient, expected_gradient) < 0.08
    assert (own is not None) == is_trained
    if own is not None:
        assert dense.weight.grad is not None
        assert distance(own, dense.weight.grad) < 0.08


@pytest.mark.parametrize("num_inputs", [48, 64, 96, 256])
@pytest.mark.parametrize("kind", list(WEIGHT_ERRORS))
def test_weights_are_rounded_as_finely_as_their_bits_allow(kind, num_inputs) -> None:
    """48 and 96 are no multiples of nf4's block: there the library's own kernel for CPUs is off by 20 %."""
    dense = dense_layer(num_inputs=num_inputs)
    assert 0.001 < distance(quantised(kind, dense).weight, dense.weight) < WEIGHT_ERRORS[kind]


def test_bits_are_those_of_the_libraries() -> None:
    import bitsandbytes.functional as bnb
    from torchao.quantization import Float8Tensor, Int8Tensor, PerRow

    dense = dense_layer(torch.bfloat16, 128)
    weight = dense.weight.detach()
    packed, state = bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    expected = {
        "int8": Int8Tensor.from_hp(weight, PerRow()).dequantize(),
        "float8": Float8Tensor.from_hp(weight, granularity=PerRow()).dequantize(),
        "nf4": bnb.dequantize_4bit(packed, state),
    }
    for kind, widened in expected.items():
        assert torch.equal(quantised(kind, dense).weight, widened), kind


def kept_for_backward(layer: Any, values: Tensor) -> list[tuple[tuple[int, ...], torch.dtype]]:
    known = {tensor.untyped_storage().data_ptr() for tensor in (values, *layer.parameters())}
    found: list[tuple[tuple[int, ...], torch.dtype]] = []

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in known and tensor.numel() > NUM_OUTPUTS:
            known.add(address)
            found.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(values)
    return sorted(found, key=str)


@pytest.mark.parametrize("kind", ["int8", "float8", "nf4", "int8-bnb", "float8-dynamic", "float8-training"])
def test_nothing_is_kept_but_the_bits(kind) -> None:
    layer = quantised(kind, dense_layer(torch.bfloat16))
    assert kept_for_backward(layer, inputs(dtype=torch.bfloat16).requires_grad_()) == []


def test_torchao_keeps_dense_weights_or_copies_of_inputs() -> None:
    """A control of the test above, and what a plan for other programs counts."""
    from torchao.quantization import Float8Tensor, PerRow

    dense, values = dense_layer(torch.bfloat16), inputs(dtype=torch.bfloat16).requires_grad_()
    matrix, rows = (NUM_INPUTS, NUM_OUTPUTS), (NUM_ROWS, NUM_INPUTS)
    assert kept_for_backward(quantised("int8 by torchao", dense), values) == [(matrix, torch.bfloat16)]
    float8 = quantised("float8 by torchao", dense)
    assert kept_for_backward(float8, values) == [(matrix, torch.bfloat16)]
    assert kept_for_backward(quantised("float8-dynamic by torchao", dense), values) == [
        (rows, torch.bfloat16),
        (rows, torch.float32),
        (rows, torch.float32),
    ]
    library = Float8Tensor.from_hp(dense.weight.detach(), granularity=PerRow())
    torch.testing.assert_close(float8(values), F.linear(values, library, dense.bias), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["int8", "float8", "float8-dynamic"])
def test_torchaos_autograd_is_the_same_but_for_rounding(kind) -> None:
    dense = dense_layer()
    lean = answer_and_gradient(quantised(kind, dense), inputs(), None)
    other = answer_and_gradient(quantised(f"{kind} by torchao", dense), inputs(), None)
    assert distance(other[0], lean[0]) < 1e-3
    assert distance(other[1], lean[1]) < 1e-5


@pytest.mark.parametrize("kind", LAYERS)
def test_computed_again_it_is_the_same(kind) -> None:
    layer = quantised(kind, dense_layer(torch.bfloat16))
    once = answer_and_gradient(layer, inputs(), torch.bfloat16)
    again = answer_and_gradient(lambda values: checkpoint(layer, values, use_reentrant=False), inputs(), torch.bfloat16)
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])


@pytest.mark.parametrize("kind", ["int8", "float8", "float8-dynamic", "nf4", "int8-bnb"])
def test_bits_stay_what_they_are_when_the_model_changes_type_or_place(kind) -> None:
    layer = quantised(kind, dense_layer())
    before = {name: tensor.dtype for name, tensor in layer.named_parameters() if name != "bias"}
    expected = layer.weight
    layer.to(torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in layer.named_parameters() if name != "bias"} == before
    assert layer.bias.dtype == torch.bfloat16
    assert torch.equal(layer.weight, expected)
    layer.to("meta")
    assert {tensor.device.type for tensor in layer.parameters()} == {"meta"}


@pytest.mark.parametrize("kind", LAYERS)
def test_on_meta_it_has_the_same_tensors(kind) -> None:
    dense = dense_layer(torch.bfloat16)
    real, empty = quantised(kind, dense), quantised(kind, dense.to("meta"))

    def described(layer: nn.Module) -> dict[str, Any]:
        return {name: (tensor.shape, tensor.dtype) for name, tensor in layer.named_parameters()}

    assert described(real) == described(empty)
    assert {tensor.device.type for tensor in empty.parameters()} == {"meta"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_on_a_cpu_are_those_of_8_bit_numbers(dtype) -> None:
    (rows, scale), (matrix, other_scale) = (rounded(values.to(dtype)) for values in (inputs()[0], torch.randn(32, 96)))
    bias = torch.randn(32, dtype=dtype)
    emulated = scaled_product(rows, matrix.t(), scale, other_scale, dtype, bias)
    with as_on_gpus():
        own = scaled_product(rows, matrix.t(), scale, other_scale, dtype, bias)
    assert emulated.dtype == own.dtype == dtype
    assert distance(emulated, own) < {torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 1e-3}[dtype]


def test_an_input_of_zeros_is_no_division_by_zero() -> None:
    layer = quantised("float8-dynamic", dense_layer())
    assert torch.equal(layer(torch.zeros(1, NUM_INPUTS)), layer.bias[None])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_quantised_where_it_is(kind) -> None:
    layer = quantised(kind, dense_layer(torch.bfloat16).cuda())
    assert {tensor.device.type for tensor in (*layer.parameters(), *layer.buffers())} == {"cuda"}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", LAYERS)
def test_on_a_gpu(kind) -> None:
    """The bits are those of the CPU, and so is the answer, but for the order of sums."""
    if kind.startswith(("float8-dynamic", "float8-training")) and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU does not multiply 8-bit floating-point numbers")
    layer = quantised(kind, dense_layer(torch.bfloat16))
    expected = answer_and_gradient(layer, inputs(dtype=torch.bfloat16), None)
    layer.to("cuda")
    out, gradient = answer_and_gradient(layer, inputs(dtype=torch.bfloat16).cuda(), None)
    assert distance(out.cpu(), expected[0]) < 0.02
    assert distance(gradient.cpu(), expected[1]) < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round_a_product_of_integers(dtype: torch.dtype) -> None:
    """Such sums exceed what fp16 can represent. Without a kernel for the device, the library adds them in torch."""
    layer = quantised("int8-bnb", dense_layer(dtype)).to("cuda")
    values = inputs(dtype=dtype).cuda()
    with torch.autocast("cuda", dtype=dtype):
        under_autocast = layer(values)
    assert torch.equal(under_autocast, layer(values))
    assert bool(under_autocast.isfinite().all())
