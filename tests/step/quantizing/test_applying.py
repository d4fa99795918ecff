"""Which layers of a model are quantised; training through them; what is said of it."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from foretune.choices.quantize import Quantize
from foretune.core.errors import MissingExtra, Refused
from foretune.models.locating import open_family
from foretune.step.quantizing import (
    Quantized,
    QuantizedLinear,
    applying,
    check_quantization,
    quantize_denoiser,
    quantize_encoder,
)
from foretune.step.weights import checksums, num_trained_and_all, num_weights
from tests.step.small_steps import gradients, made_batch, small_step

FEWER_BITS = ["int8", "float8", "float8-dynamic", "nf4", "int8-bnb"]
ALL = [*FEWER_BITS, "float8-training"]
WEIGHT_ONLY = ["int8", "float8", "nf4"]


def quantise(folder: Any, kind: str, **choice: Any) -> tuple[nn.Module, Quantized]:
    family = open_family(folder)
    denoiser = family.load_denoiser(folder, torch.bfloat16)
    done = quantize_denoiser(Quantize.model_validate({"denoiser": kind, **choice}), family, denoiser)
    assert done is not None
    return denoiser, done


def linear_names(denoiser: nn.Module) -> set[str]:
    return {name for name, module in denoiser.named_modules() if isinstance(module, nn.Linear)}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("flux", {"x_embedder", "context_embedder", "proj_out", "norm_out.linear"}),
        ("sd3", {"context_embedder", "proj_out", "norm_out.linear"}),
        ("ddpm", {"time_embedding.linear_1", "time_embedding.linear_2"}),
    ],
)
def test_layers_outside_of_the_blocks_are_kept(tiny_pipeline, name, kept) -> None:
    denoiser, done = quantise(tiny_pipeline(name), "int8")
    quantised = {n for n, module in denoiser.named_modules() if isinstance(module, QuantizedLinear)}
    assert kept <= set(done.kept)
    assert linear_names(denoiser) == quantised | set(done.kept)
    assert done.num_layers == len(quantised) > 0
    assert done.unfit == ()
    in_blocks = [n for n in done.kept if "block" in n]
    assert all(n.endswith("time_emb_proj") for n in in_blocks)
    assert bool(in_blocks) == (name == "ddpm")


def test_keep_is_by_parts_of_names(tiny_pipeline) -> None:
    folder = tiny_pipeline("flux")
    _, everything = quantise(folder, "int8", keep=[])
    assert everything.kept == ()
    _, some = quantise(folder, "int8", keep=["attn.", "norm"])
    assert some.kept
    assert all("attn." in name or "norm" in name for name in some.kept)
    assert some.num_layers + len(some.kept) == everything.num_layers


def test_a_name_that_matches_nothing_is_refused(tiny_pipeline) -> None:
    with pytest.raises(Refused, match=r"quantize\.keep: no linear layer of this model has 'nrom' in its name"):
        quantise(tiny_pipeline("flux"), "int8", keep=["nrom"])


@pytest.mark.parametrize(
    ("kind", "bytes_a_weight"), [("int8", 1), ("float8", 1), ("float8-dynamic", 1), ("nf4", 0.5), ("int8-bnb", 1)]
)
def test_bytes_are_counted(tiny_pipeline, kind, bytes_a_weight) -> None:
    denoiser, done = quantise(tiny_pipeline("sd3"), kind)
    layers = [module for module in denoiser.modules() if isinstance(module, QuantizedLinear)]
    assert done.num_weights == sum(layer.in_features * layer.out_features for layer in layers)
    assert done.num_dense_bytes == 2 * done.num_weights
    assert done.num_bytes == sum(bit.nbytes for layer in layers for bit in layer.bits().values())
    scale_bytes = {
        "float8-dynamic": 4 * len(layers),
        "nf4": sum(1028 + n // 64 + -(-n // 64 // 256) * 4 for n in (m.in_features * m.out_features for m in layers)),
    }.get(kind, sum(4 * layer.out_features for layer in layers))
    assert done.num_bytes == done.num_weights * bytes_a_weight + scale_bytes


def test_what_was_done_goes_into_a_record(tiny_pipeline) -> None:
    _, done = quantise(tiny_pipeline("flux"), "nf4")
    facts = json.loads(json.dumps(done.facts()))
    assert facts["kind"] == "nf4"
    assert facts["num_bytes"] == done.num_bytes
    assert facts["is_emulated"] is False


def test_products_that_are_emulated_are_said_to_be(tiny_pipeline) -> None:
    folder = tiny_pipeline("flux")
    family = open_family(folder)
    done = quantize_denoiser(
        Quantize(denoiser="float8-dynamic"), family, family.load_denoiser(folder, torch.bfloat16), torch.device("cpu")
    )
    assert done is not None
    assert done.is_emulated


def test_sizes_that_a_backend_cannot_take_are_listed(tiny_pipeline) -> None:
    model = nn.Sequential(nn.Linear(24, 16), nn.Linear(16, 32))
    done = quantize_denoiser(Quantize(denoiser="float8-dynamic", keep=()), open_family(tiny_pipeline("flux")), model)
    assert done is not None
    assert done.unfit == ("0",)
    assert type(model[0]) is nn.Linear
    assert isinstance(model[1], QuantizedLinear)


def test_a_model_without_a_layer_to_quantise_is_refused(tiny_pipeline) -> None:
    with pytest.raises(Refused, match=r"no linear layer would be quantised: all \d+ are kept"):
        quantise(tiny_pipeline("ddpm"), "int8", keep=["."])
    model = nn.Sequential(nn.Conv2d(3, 3, 3))
    with pytest.raises(Refused, match=r"Nearest: quantize\.denoiser=none"):
        quantize_denoiser(Quantize(denoiser="nf4", keep=()), open_family(tiny_pipeline("flux")), model)


def test_nothing_happens_unasked(tiny_pipeline) -> None:
    family = open_family(tiny_pipeline("flux"))
    model = nn.Sequential(nn.Linear(16, 16))
    assert quantize_denoiser(Quantize(), family, model) is None
    assert type(model[0]) is nn.Linear


def test_text_encoders_of_odd_sizes_are_refused() -> None:
    with pytest.raises(Refused, match=r"quantize\.text_encoders: int8-bnb cannot take the sizes of 1\."):
        quantize_encoder("int8-bnb", nn.Sequential(nn.Linear(16, 16), nn.Linear(18, 16)))


@pytest.mark.parametrize(("package", "error"), [("torchao", MissingExtra), ("numpy", ModuleNotFoundError)])
def test_an_absent_library_is_named(monkeypatch, package, error) -> None:
    class Absent:
        def __getitem__(self, kind: str) -> Any:
            raise ModuleNotFoundError(f"No module named {package!r}", name=f"{package}.quantization")

    monkeypatch.setattr(applying, "BACKENDS", Absent())
    with pytest.raises(error, match=r"pip install 'foretune\[quantize\]'" if error is MissingExtra else package):
        check_quantization(Quantize(text_encoders="int8"), torch.device("cpu"))


def test_an_old_gpu_is_refused_before_anything_is_loaded(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "RTX 3090")
    check_quantization(Quantize(denoiser="float8"), torch.device("cuda"))
    with pytest.raises(Refused, match=r"RTX 3090 .*8\.6.* cannot.* Nearest: quantize\.denoiser=float8"):
        check_quantization(Quantize(denoiser="float8-training"), torch.device("cuda"))


@pytest.mark.gpu
def test_gpus_without_8_bit_products_are_refused() -> None:
    if torch.cuda.get_device_capability() >= (8, 9):
        pytest.skip("this GPU multiplies 8-bit floating-point numbers")
    with pytest.raises(Refused, match=r"8\.9 and newer can"):
        check_quantization(Quantize(denoiser="float8-dynamic"), torch.device("cuda"))


# ---- training


@pytest.mark.parametrize(
    ("kind", "name", "precision"),
    [
        ("int8", "flux", "bf16"),
        ("float8", "sd3", "fp16"),
        ("float8-dynamic", "flux", "fp16"),
        ("float8-training", "sd3", "bf16"),
        ("nf4", "flux", "bf16"),
        ("int8-bnb", "sd3", "bf16"),
        ("int8", "ddpm", "fp32"),
        ("nf4", "ddpm", "bf16"),
    ],
)
def test_an_adapter_learns_and_the_base_stays(tiny_pipeline, kind, name, precision) -> None:
    small = small_step(
        tiny_pipeline(name),
        "lora",
        train={"precision": precision},
        quantize={"denoiser": kind},
        levers={"gradient_checkpointing": 0.5},
    )
    base = checksums(small.method.frozen())
    batch = made_batch(small.family, 2)
    losses = [float(small.step(number, 1e-3, [batch], 1).loss) for number in range(4)]
    assert losses[-1] < losses[0]
    assert checksums(small.method.frozen()) == base


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
def test_gradients_of_adapters_are_those_beside_the_dense_weights(tiny_pipeline, kind) -> None:
    folder = tiny_pipeline("flux")
    sections: dict[str, Any] = {"train": {"precision": "bf16"}}
    quantised = small_step(folder, "lora", quantize={"denoiser": kind}, **sections)
    dense = small_step(folder, "lora", **sections)
    layers = dict(dense.method.denoiser.named_modules())
    for name, layer in quantised.method.denoiser.named_modules():
        if isinstance(layer, QuantizedLinear):
            other = layers[name]
            assert isinstance(other, nn.Linear)
            other.weight.data = layer.weight.detach()
    batch = made_batch(quantised.family, 2)
    found, expected = gradients(quantised.step, batch), gradients(dense.step, batch)
    assert found.keys() == expected.keys()
    assert any(gradient.abs().max() > 0 for gradient in found.values())
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", ALL)
def test_weights_are_counted_as_if_they_were_dense(tiny_pipeline, kind) -> None:
    folder = tiny_pipeline("sd3")
    quantised, dense = (small_step(folder, "lora", quantize={"denoiser": asked}).method for asked in (kind, "none"))
    assert num_trained_and_all(quantised) == num_trained_and_all(dense)
    assert num_weights(dense.denoiser) == sum(p.numel() for p in dense.denoiser.parameters())


@pytest.mark.parametrize("kind", FEWER_BITS)
def test_a_changed_bit_changes_the_checksum(tiny_pipeline, kind) -> None:
    denoiser, _ = quantise(tiny_pipeline("flux"), kind)
    before = checksums(dict(denoiser.named_parameters()))
    layer = next(module for module in denoiser.modules() if isinstance(module, QuantizedLinear))
    numbers = next(iter(layer.bits().values()))
    numbers.view(torch.uint8).view(-1)[0] ^= 1
    after = checksums(dict(denoiser.named_parameters()))
    assert [name for name in before if before[name] != after[name]] != []


def test_all_weights_can_be_trained_with_8_bit_products(tiny_pipeline) -> None:
    small = small_step(
        tiny_pipeline("flux"), "full", train={"precision": "bf16"}, quantize={"denoiser": "float8-training"}
    )
    batch = made_batch(small.family, 3)  # 3 x 16 tokens and 3 x 12 of text: 36 rows are no multiple of 16
    before = {name: weight.detach().clone() for name, weight in small.step.trained.items()}
    losses = [float(small.step(number, 1e-3, [batch], 1).loss) for number in range(3)]
    assert losses[-1] < losses[0]
    moved = [name for name, weight in small.step.trained.items() if not torch.equal(weight, before[name])]
    assert len(moved) == len(before)
