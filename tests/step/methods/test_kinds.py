"""Every kind of adapter: what it computes, what it trains, what it draws, and what it refuses."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from foretune.core.errors import Refused
from foretune.models.locating import open_family
from foretune.step.building import attach_method
from foretune.step.methods.adapter import AppliedAdapter
from foretune.step.methods.tuners import inject
from foretune.step.quantizing.applying import quantize_encoder
from foretune.step.weights import checksums
from tests.step.methods.kinds import KINDS, adapter_of, disturb, merge
from tests.step.methods.test_methods import predict, run_steps
from tests.step.small_steps import small_experiment, small_step

TinyPipeline = Callable[..., Path]

LAYER = "transformer_blocks.0.attn.to_q"


@pytest.mark.parametrize("kind", KINDS)
def test_the_adapter_is_trained_and_nothing_else(kind: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    untouched = predict(small_step(folder, "full"))
    small = small_step(folder, KINDS[kind])
    # DoRA divides a norm by the same norm and multiplies again.
    torch.testing.assert_close(predict(small), untouched, rtol=1e-5, atol=1e-6 if kind == "dora" else 0)
    trained = checksums(small.method.trained())
    assert all(".default" in name for name in trained)
    base, state = checksums(small.method.frozen()), torch.get_rng_state()
    assert len(base) == len(list(open_family(folder).load_denoiser(folder, torch.float32).parameters()))
    run_steps(small.step, small, num=3)
    assert torch.equal(torch.get_rng_state(), state), "a pass drew a number"
    assert checksums(small.method.frozen()) == base
    after = checksums(small.method.trained())
    assert [name for name in after if after[name] == trained[name]] == []
    small.step.denoiser.eval()
    assert not torch.allclose(predict(small), untouched, atol=1e-4)


@pytest.mark.parametrize("numbers", ["none", "int8", "nf4"])
def test_lora_layers_are_the_ones_that_peft_chooses(numbers: str) -> None:
    """Also where the base is quantised: peft looks for layers of the quantisation libraries first."""
    pytest.importorskip("torchao")
    pytest.importorskip("bitsandbytes")
    layers = nn.ModuleDict({"linear": nn.Linear(64, 64), "conv": nn.Conv2d(4, 4, 3)})
    if numbers != "none":
        quantize_encoder(numbers, layers, torch.device("cpu"))
        assert type(layers["linear"]) is not nn.Linear
    config = LoraConfig(r=4, target_modules=["linear", "conv"])
    ours, theirs = deepcopy(layers), deepcopy(layers)
    inject(config, ours, "default")
    inject_adapter_in_model(config, theirs, "default")
    assert isinstance(ours["linear"], LoraLayer)
    assert [(name, type(m)) for name, m in ours.named_modules()] == [
        (name, type(m)) for name, m in theirs.named_modules()
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_what_is_drawn_and_the_type_is_that_of_trained_weights(
    kind: str, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    half = {"precision": "bf16", "weight_dtype": "bf16"}
    drawn = [small_step(folder, KINDS[kind], train={"seed": seed, **half}).method.trained() for seed in (0, 0, 1)]
    assert {tensor.dtype for tensor in drawn[0].values()} == {torch.bfloat16}
    assert checksums(drawn[0]) == checksums(drawn[1])
    assert (checksums(drawn[0]) == checksums(drawn[2])) is (kind == "oft"), "rotations begin with none"
    full = small_step(folder, KINDS[kind], train={"precision": "bf16"}).method.trained()
    assert {tensor.dtype for tensor in full.values()} == {torch.float32}


@pytest.mark.parametrize(("family", "kind"), [*(("flux", kind) for kind in KINDS), ("sd3", "dora"), ("ddpm", "oft")])
def test_on_meta_it_is_what_it_is_with_weights(kind: str, family: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(family)
    experiment = small_experiment(KINDS[kind])
    opened = open_family(folder)
    shapes = []
    for denoiser in (opened.denoiser_on_meta(torch.float32), opened.load_denoiser(folder, torch.float32)):
        method = attach_method(experiment, opened, denoiser)
        shapes.append({name: (tuple(p.shape), p.requires_grad) for name, p in denoiser.named_parameters()})
        assert {p.is_meta for p in method.trained().values()} == {len(shapes) == 1}
    assert shapes[0] == shapes[1]


def rotation(angles: Tensor) -> Tensor:
    """Cayley's transform of the skew-symmetric matrix with these numbers above its diagonal."""
    skew = torch.zeros(8, 8)
    skew[*torch.triu_indices(8, 8, 1)] = angles
    skew = skew - skew.T
    turned: Tensor = torch.linalg.solve(torch.eye(8) - skew, torch.eye(8) + skew)
    return turned


def update(kind: str, layer: Any, base: Tensor) -> Tensor:
    """The weight that a layer with an adapter stands for, by the formulas of the papers."""
    part: dict[str, Tensor] = {
        name.partition(".default")[0]: p for name, p in layer.named_parameters() if ".default" in name
    }
    if kind == "oft":
        rotations: Tensor = torch.block_diag(*(rotation(row) for row in part["oft_R"]))
        return base @ rotations.T
    if kind == "loha":
        first, second = (part[f"hada_w{i}_a"] @ part[f"hada_w{i}_b"] for i in (1, 2))
        return base + 10 / 4 * first * second
    if kind.startswith("lokr"):
        larger = part["lokr_w2"] if kind == "lokr whole" else part["lokr_w2_a"] @ part["lokr_w2_b"]
        return base + 5 / 2 * torch.kron(part["lokr_w1"], larger)
    changed = base + 10 / (2 if kind == "rslora" else 4) * part["lora_B"] @ part["lora_A"]
    if kind != "dora":
        return changed
    lengths: Tensor = changed.norm(dim=1, keepdim=True)
    return part["lora_magnitude_vector"][:, None] * changed / lengths


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_computes_is_what_its_paper_says(kind: str, tiny_pipeline: TinyPipeline) -> None:
    """In training and in evaluation; and merged into the base, with nothing left beside it."""
    folder = tiny_pipeline("flux")
    method = adapter_of(small_step(folder, KINDS[kind]))
    disturb(method)
    layer: Any = method.denoiser.get_submodule(LAYER)
    x = torch.randn(5, layer.in_features, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = x @ update(kind, layer, layer.base_layer.weight).T + layer.base_layer.bias
        # peft's rotations are the first terms of a series.
        rtol, atol = (1e-2, 5e-3) if kind == "oft" else (1e-4, 1e-5)
        for mode in (True, False):
            torch.testing.assert_close(layer.train(mode=mode)(x), expected, rtol=rtol, atol=atol)
        method.denoiser.eval()
        beside = layer(x)
        merge(method)
        merged = method.denoiser.get_submodule(LAYER)
        assert type(merged) is torch.nn.Linear
        torch.testing.assert_close(merged(x), beside, rtol=1e-4, atol=1e-5)
    names = {name for name, _ in open_family(folder).load_denoiser(folder, torch.float32).named_parameters()}
    assert {name for name, _ in method.denoiser.named_parameters()} == names


def test_a_merged_weight_is_rounded_once(tiny_pipeline: TinyPipeline) -> None:
    """The update is far below half a bf16 step of most weights, but not of all."""
    folder = tiny_pipeline("flux")
    experiment = small_experiment(KINDS["lora"])
    family = open_family(folder)
    denoiser = family.load_denoiser(folder, torch.bfloat16)
    method = attach_method(experiment, family, denoiser)
    assert isinstance(method, AppliedAdapter)
    disturb(method)
    layer: Any = denoiser.get_submodule(LAYER)
    with torch.no_grad():
        expected = update("lora", layer, layer.base_layer.weight.float()).bfloat16()
    merge(method)
    assert torch.equal(denoiser.get_parameter(f"{LAYER}.weight"), expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "oft"])
def test_convolutions_can_be_adapted(kind: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("ddpm")
    untouched = predict(small_step(folder, "full"))
    small = small_step(folder, {**KINDS[kind], "targets": ["conv1", "to_q"]})
    torch.testing.assert_close(predict(small), untouched, rtol=1e-4, atol=1e-5)
    assert any("conv1" in name for name in small.method.trained())
    before = checksums(small.method.trained())
    run_steps(small.step, small, num=3)
    after = checksums(small.method.trained())
    assert [name for name in after if after[name] == before[name]] == []


def test_rotations_of_convolutions_are_refused(tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(Refused, match=r"no layer of this ddpm model that oft can change is named 'conv1'.*to_q"):
        small_step(tiny_pipeline("ddpm"), {**KINDS["oft"], "targets": ["conv1"]})


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"kind": "oft"}, "method.block_size: 32 does not divide 48, .* Nearest: method.block_size=24"),
        ({"kind": "oft", "block_size": 5}, "Nearest: method.block_size=4"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(method: dict[str, Any], said: str, tiny_pipeline: TinyPipeline) -> None:
    """peft would take the nearest that does, and warn at most."""
    with pytest.raises(Refused, match=said):
        small_step(tiny_pipeline("flux"), method)


@pytest.mark.parametrize(("factor", "smaller"), [(4, "4 x 4"), (5, "4 x 4"), (13, "6 x 6"), (100, "6 x 6")])
def test_a_kronecker_factor_is_the_most_that_divides(factor: int, smaller: str, tiny_pipeline: TinyPipeline) -> None:
    """Sides of 48; past the square root both matrices are about equal."""
    method = small_step(tiny_pipeline("flux"), {"kind": "lokr", "factor": factor, "rank": 1}).method
    assert isinstance(method, AppliedAdapter)
    assert smaller in method.facts()["smaller_matrices"]


def test_a_kronecker_factor_of_minus_one_fits_everything(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), {"kind": "lokr", "factor": -1, "rank": 1})
    layer: Any = small.method.denoiser.get_submodule(LAYER)
    assert tuple(layer.lokr_w1["default"].shape) == (6, 6)
    chosen: Any = small_step(tiny_pipeline("flux"), KINDS["lokr whole"]).method.denoiser.get_submodule(LAYER)
    assert tuple(chosen.lokr_w1["default"].shape) == (4, 4), "the factor that was asked for"


@pytest.mark.parametrize("numbers", ["int8", "nf4"])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_quantised_base(kind: str, numbers: str, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), KINDS[kind], train={"precision": "bf16"}, quantize={"denoiser": numbers})
    base, trained = checksums(small.method.frozen()), checksums(small.method.trained())
    losses = run_steps(small.step, small, num=3)
    assert all(0 < loss < 10 for loss in losses)
    assert checksums(small.method.frozen()) == base
    after = checksums(small.method.trained())
    assert [name for name in after if after[name] == trained[name]] == []
    plain = small_step(tiny_pipeline("flux"), KINDS[kind])
    assert {name: p.shape for name, p in plain.method.trained().items()} == {
        name: p.shape for name, p in small.method.trained().items()
    }, "what is trained has the same names, so that it loads onto the unquantised base"
