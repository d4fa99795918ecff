"""Which numbers are used where, and how loss scaling behaves."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foretune.choices.training import Precision
from foretune.data.batch import Batch
from foretune.step.precision import PrecisionPolicy
from foretune.step.weights import checksums, num_changed
from tests.step.small_steps import SmallStep, gradients, made_batch, small_step

TinyPipeline = Callable[..., Path]

LORA = {"kind": "lora", "rank": 2}
COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def dtypes(tensors: Any) -> set[torch.dtype]:
    return {tensor.dtype for tensor in tensors}


def linear_output_dtypes(small: SmallStep) -> set[torch.dtype]:
    """The types in which the base's linear layers answer during a step."""
    found: set[torch.dtype] = set()
    for module in small.step.denoiser.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, __, output: found.add(output.dtype))
    small.step(0, 1e-3, [made_batch(small.family, 1)], 1)
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("method", ["full", LORA])
def test_types_of_weights_gradients_and_states(precision: Precision, method: Any, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), method, train={"precision": precision})
    batch = made_batch(small.family, 1)
    frozen = small.method.frozen()
    assert dtypes(small.step.trained.values()) == {torch.float32}
    assert dtypes(frozen.values()) == (set() if method == "full" else {COMPUTE[precision]})
    assert dtypes(gradients(small.step, batch).values()) == {torch.float32}
    outcome = small.step(0, 1e-3, [batch], 1)
    assert outcome.loss.dtype == torch.float32
    moments = [value for state in small.step.optimizer.state.values() for value in state.values()]
    assert moments
    assert dtypes(moments) == {torch.float32}
    assert dtypes(small.step.trained.values()) == {torch.float32}


@pytest.mark.parametrize("compensation", ["none", "kahan"])
@pytest.mark.parametrize("method", ["full", LORA])
def test_bf16_weights_have_bf16_gradients_and_states(
    method: Any, compensation: str, tiny_pipeline: TinyPipeline
) -> None:
    train = {"precision": "bf16", "weight_dtype": "bf16", "ema": {}, "max_grad_norm": 0.1}
    small = small_step(tiny_pipeline("flux"), method, train=train, optimizer={"compensation": compensation})
    batch = made_batch(small.family, 1)
    assert dtypes(small.step.trained.values()) == {torch.bfloat16}
    assert dtypes(gradients(small.step, batch).values()) == {torch.bfloat16}
    before = checksums(small.step.trained)
    outcome = small.step(0, 1e-2, [batch], 1)
    assert outcome.loss.dtype == torch.float32
    assert outcome.grad_norm is not None
    assert outcome.grad_norm.isfinite()
    assert num_changed(before, checksums(small.step.trained)) > 0
    states = [(name, value) for state in small.step.optimizer.state.values() for name, value in state.items()]
    assert dtypes(value for name, value in states if name != "step") == {torch.bfloat16}
    assert ("shift" in dict(states)) is (compensation == "kahan")
    assert small.step.ema is not None
    assert dtypes(small.step.ema.average.values()) == {torch.float32}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["full", LORA])
def test_products_run_in_the_compute_type(precision: Precision, method: Any, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), method, train={"precision": precision})
    assert linear_output_dtypes(small) == {COMPUTE[precision]}


@pytest.mark.parametrize("name", ["ddpm", "sd3", "flux"])
def test_bf16_is_near_fp32(name: str, tiny_pipeline: TinyPipeline) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        small = small_step(tiny_pipeline(name), train={"precision": precision})
        with torch.no_grad():
            losses.append(float(small.step.loss(made_batch(small.family, 2))))
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(("precision", "scales"), [("fp32", False), ("bf16", False), ("fp16", True)])
def test_only_fp16_scales_its_loss(precision: Precision, scales: bool, tiny_pipeline: TinyPipeline) -> None:
    assert PrecisionPolicy(precision).needs_loss_scaling is scales
    assert small_step(tiny_pipeline("flux"), train={"precision": precision}).step.scaler.is_enabled() is scales


def test_scaler_counts_good_steps_and_backs_off_on_overflow(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), LORA, train={"precision": "fp16"})
    step, batch = small.step, made_batch(small.family, 1)
    # A scale that small gradients survive and that leaves room below the largest half.
    step.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    step(0, 1e-3, [batch], 1)
    assert step.scaler.state_dict()["_growth_tracker"] == 1
    assert step.scaler.get_scale() == 256.0
    weights = {name: parameter.detach().clone() for name, parameter in step.trained.items()}
    # A target too large for the scaled loss: its gradient is infinite, the step is skipped, the scale halved.
    outcome = step(1, 1e-3, [dataclasses.replace(batch, noise=batch.noise * 3e37)], 1)
    assert outcome.grad_norm is not None
    assert not outcome.grad_norm.isfinite()
    assert step.scaler.get_scale() == 128.0
    assert step.scaler.state_dict()["_growth_tracker"] == 0
    assert all(torch.equal(weights[name], parameter) for name, parameter in step.trained.items())


def test_scaled_gradients_are_unscaled_before_they_are_clipped(tiny_pipeline: TinyPipeline) -> None:
    norms = []
    for scale in (1.0, 512.0):
        small = small_step(tiny_pipeline("flux"), LORA, train={"precision": "fp16"})
        small.step.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        outcome = small.step(0, 1e-3, [made_batch(small.family, 1)], 1)
        assert outcome.grad_norm is not None
        norms.append(float(outcome.grad_norm))
    assert norms[0] == pytest.approx(norms[1], rel=0.02)


def tf32_flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("precision", "inside"), [("tf32", (True, True)), ("fp32", (False, False)), ("bf16", None)])
def test_products_of_fp32_numbers_are_set_for_a_step_and_put_back(
    precision: Precision, inside: tuple[bool, bool] | None
) -> None:
    before = tf32_flags()
    with PrecisionPolicy(precision).products():
        assert tf32_flags() == (before if inside is None else inside)
    assert tf32_flags() == before
    with pytest.raises(RuntimeError, match="no"), PrecisionPolicy(precision).products():
        raise RuntimeError("no")
    assert tf32_flags() == before


def test_a_step_in_tf32_computes_in_it_and_leaves_no_trace(
    tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the flags change nothing; that they are there in forward and backward pass can be seen all the same."""
    small = small_step(tiny_pipeline("flux"), LORA, train={"precision": "tf32"})
    seen: list[tuple[bool, bool]] = []
    loss = small.step.loss

    def watched(batch: Batch) -> torch.Tensor:
        seen.append(tf32_flags())
        return loss(batch)

    monkeypatch.setattr(small.step, "loss", watched)
    next(iter(small.step.trained.values())).register_hook(lambda _: seen.append(tf32_flags()))
    before = tf32_flags()
    small.step(0, 1e-3, [made_batch(small.family, 1)], 1)
    assert seen == [(True, True)] * 2
    assert tf32_flags() == before


@pytest.mark.gpu
@pytest.mark.real_gpu("the rounding of TF32 products")
def test_tf32_rounds_products_and_fp32_does_not() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    errors = {}
    for precision in ("fp32", "tf32"):
        with PrecisionPolicy(precision).products():
            errors[precision] = float(((a.cuda() @ b.cuda()).cpu().double() - exact).abs().max())
    assert errors["fp32"] < 1e-4
    assert errors["tf32"] > 10 * errors["fp32"]
