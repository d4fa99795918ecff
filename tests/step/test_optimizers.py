"""Every kind of optimizer: what it keeps is what its layout says, its rate is the step's, and it goes on as it was."""

import gc
import importlib.util
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.choices.training import Levers, Optimizer
from foretune.core.errors import MissingExtra
from foretune.step import optimizing
from foretune.step.optimizers.base import Updater
from foretune.step.optimizing import OPTIMIZERS, build_optimizer, require_optimizer
from foretune.trace.shipped import recipes

# Paged states need CUDA's unified memory; without it the library falls back to common ones, which is refused.
KINDS = [kind for kind, spec in OPTIMIZER_SPECS.items() if not spec.is_paged]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LEVERS = {"plain": Levers(), "host": Levers(optimizer_offload=True), "backward": Levers(fused_backward=True)}


def made_weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Above and below the size from which states are 8-bit; a matrix, a vector and a convolution."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(80, 64), (40, 3), (7,), (4, 3, 3, 3)]
    return [nn.Parameter((torch.randn(shape, generator=generator) * 0.1).to(dtype)) for shape in shapes]


def give_gradients(weights: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)


def choice(kind: str, **settings: Any) -> Optimizer:
    return Optimizer.model_validate({"kind": kind, "betas": (0.9, 0.99), **settings})


def run(updater: Updater, weights: list[nn.Parameter], steps: range, lr: float = 1e-2) -> None:
    for step in steps:
        updater.set_lr(lr * (1 + step))
        give_gradients(weights, step)
        updater.step()
        updater.zero_grad(set_to_none=True)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("levers", LEVERS)
@pytest.mark.parametrize("weights", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_has_the_forms_that_are_told_and_is_all_that_matters(kind: str, weights: str, levers: str) -> None:
    if OPTIMIZER_SPECS[kind].finds_lr and levers == "backward":
        pytest.skip(f"{kind} needs all gradients at once; refused")
    first, second = made_weights(DTYPES[weights]), made_weights(DTYPES[weights])
    old = build_optimizer(choice(kind), first, levers=LEVERS[levers])
    assert all(old.save(weight) == {} for weight in first)
    assert old.save_once() == {}
    run(old, first, range(3))
    new = build_optimizer(choice(kind), second, levers=LEVERS[levers])
    with torch.no_grad():
        for weight, other in zip(first, second, strict=True):
            other.copy_(weight)
    new.weights_replaced()
    for weight, other in zip(first, second, strict=True):
        saved, forms = copied(old.save(weight)), new.forms(other)
        assert {name: (tuple(t.shape), t.dtype) for name, t in saved.items()} == {
            name: (form.shape, form.dtype) for name, form in forms.items()
        }
        new.load(other, saved)
    once = copied(old.save_once())
    assert once.keys() == new.forms_once().keys()
    new.load_once(once)
    run(old, first, range(3, 5))
    run(new, second, range(3, 5))
    assert all(torch.equal(weight, other) for weight, other in zip(first, second, strict=True))
    for weight, other in zip(first, second, strict=True):
        again = new.save(other)
        assert all(torch.equal(tensor, again[name]) for name, tensor in old.save(weight).items())


@pytest.mark.parametrize("kind", KINDS)
def test_rate_of_the_step_is_the_one_that_counts(kind: str) -> None:
    weights = made_weights()
    before = [weight.detach().clone() for weight in weights]
    updater = build_optimizer(choice(kind, lr=1.0), weights)
    run(updater, weights, range(1), lr=0.0)
    assert all(torch.equal(weight, start) for weight, start in zip(weights, before, strict=True))
    run(updater, weights, range(1, 2), lr=1e-2)
    assert all(not torch.equal(weight, start) for weight, start in zip(weights, before, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_without_a_gradient_is_left_alone(kind: str) -> None:
    weights = made_weights()
    before = weights[0].detach().clone()
    updater = build_optimizer(choice(kind), weights)
    give_gradients(weights, 0)
    weights[0].grad = None
    updater.step()
    assert torch.equal(weights[0], before)
    assert updater.save(weights[0]) == {}
    assert updater.save(weights[1]) != {}


def test_states_below_4096_numbers_stay_in_full() -> None:
    weights = made_weights()
    updater = build_optimizer(choice("adamw8bit"), weights)
    run(updater, weights, range(1))
    assert {n: t.dtype for n, t in updater.save(weights[0]).items() if n != "step"} == {
        "state1": torch.uint8,
        "state2": torch.uint8,
        "absmax1": torch.float32,
        "absmax2": torch.float32,
    }
    assert {t.dtype for n, t in updater.save(weights[1]).items() if n != "step"} == {torch.float32}
    # The tables of what a byte stands for are there once, and no part of a checkpoint.
    assert sorted(tuple(table.shape) for table in updater.kept_once()) == [(256,), (256,)]


@pytest.mark.parametrize("kind", OPTIMIZER_SPECS)
def test_every_kind_that_can_be_asked_for_is_there(kind: str) -> None:
    assert callable(OPTIMIZERS[choice(kind).kind])


@pytest.mark.parametrize("kind", OPTIMIZER_SPECS)
def test_the_table_has_the_bytes_that_states_take(kind: str) -> None:
    """Of the recipe for large matrices; what is kept once for each tensor, row or block of 256 is small beside them."""
    for dtype, weight_bytes in {"fp32": 4, "bf16": 2}.items():
        states = recipes().updates[f"{kind}.{dtype}"].matrix.states
        num_bytes = sum(piece.bytes_per_number for piece in states if piece.count == "weights")
        assert num_bytes == pytest.approx(OPTIMIZER_SPECS[kind].state_bytes_of(weight_bytes), abs=0.05)


@pytest.mark.parametrize("kind", [kind for kind, spec in OPTIMIZER_SPECS.items() if spec.library is not None])
def test_a_library_that_is_not_there_is_named_by_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = OPTIMIZER_SPECS[kind].library
    assert library is not None
    assert importlib.util.find_spec(library) is not None
    monkeypatch.setattr(optimizing, "find_spec", lambda name: None if name == library else object())
    with pytest.raises(MissingExtra, match=rf"optimizer\.kind={kind} .* pip install 'foretune\[optimizers\]'"):
        require_optimizer(choice(kind))
    require_optimizer(choice("adamw"))


def test_schedule_free_shows_its_average() -> None:
    """Base point and average by hand: x <- x + (z - x) / k for k equal rates, and training at 0.9 of the way to x."""
    weight = nn.Parameter(torch.tensor([1.0]))
    updater = build_optimizer(choice("schedule-free", weight_decay=0.0, betas=(0.9, 0.999)), [weight])
    assert updater.averaged(weight) is None
    base = average = 1.0
    square = 0.0
    for k in range(1, 6):
        updater.set_lr(0.1)
        gradient = 0.5 * k
        weight.grad = torch.tensor([gradient])
        updater.step()
        square = 0.999 * square + 0.001 * gradient**2
        base -= 0.1 * gradient / (square / (1 - 0.999**k)) ** 0.5
        average += (base - average) / k
        shown = updater.averaged(weight)
        assert shown is not None
        assert float(shown) == pytest.approx(average, abs=1e-5)
        assert weight.item() == pytest.approx(0.1 * base + 0.9 * average, abs=1e-5)


def test_adafactor_moves_a_weight_of_zeros_by_the_rate() -> None:
    """A fresh adapter is zero: a step in proportion to the weight would leave it there."""
    weight = nn.Parameter(torch.zeros(4, 4))
    updater = build_optimizer(choice("adafactor"), [weight])
    updater.set_lr(1e-2)
    weight.grad = torch.ones_like(weight)
    updater.step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 4), -1e-2))


@pytest.mark.parametrize("levers", LEVERS.values(), ids=LEVERS)
def test_weights_are_freed_with_their_optimizer(levers: Levers) -> None:
    weights = made_weights()
    updater = build_optimizer(choice("adamw"), weights, levers=levers)
    torch.stack([(weight * weight).sum() for weight in weights]).sum().backward()
    updater.step()
    alive = [weakref.ref(weight) for weight in weights]
    del weights, updater
    gc.collect()
    assert not any(weight() is not None for weight in alive)
