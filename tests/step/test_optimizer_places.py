"""Updates in the backward pass and on the host: the same weights, without gradients or states on the device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.accelerator.copies import watching_host
from foretune.step.ema import MovingAverage
from foretune.step.weights import checksums
from tests.step.small_steps import SmallStep, made_batch, small_step

TinyPipeline = Callable[..., Path]

LORA = {"kind": "lora", "rank": 4}
NO_CLIPPING = {"max_grad_norm": None}
BF16 = {"precision": "bf16", "weight_dtype": "bf16"}


def losses(small: SmallStep, num_steps: int = 3, lr: float = 1e-2) -> list[float]:
    """Of steps whose rate is another one each time."""
    batches = [made_batch(small.family, 2, seed=index) for index in range(num_steps)]
    return [float(small.step(i, lr / (1 + i), [batch], 1).loss) for i, batch in enumerate(batches)]


def assert_same(one: SmallStep, other: SmallStep) -> None:
    assert losses(one) == losses(other)
    assert checksums(one.step.trained) == checksums(other.step.trained)


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "lion8bit", "adafactor", "schedule-free"])
def test_in_backward_is_the_same_bit_for_bit(kind: str, tiny_pipeline: TinyPipeline) -> None:
    asked: dict[str, Any] = {"train": NO_CLIPPING, "optimizer": {"kind": kind, "betas": (0.9, 0.99)}}
    folder = tiny_pipeline("flux")
    assert_same(
        small_step(folder, **asked),
        small_step(folder, **asked, levers={"fused_backward": True, "gradient_checkpointing": 0.5}),
    )


@pytest.mark.parametrize("compensation", ["kahan", "stochastic"])
def test_in_backward_with_compensation(compensation: str, tiny_pipeline: TinyPipeline) -> None:
    asked: dict[str, Any] = {"train": {**BF16, **NO_CLIPPING}, "optimizer": {"compensation": compensation}}
    folder = tiny_pipeline("flux")
    assert_same(small_step(folder, **asked), small_step(folder, **asked, levers={"fused_backward": True}))


def test_in_backward_gradients_are_never_there_all_at_once(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), train=NO_CLIPPING, levers={"fused_backward": True})
    most = 0
    trained = list(small.step.trained.values())

    def count(_: torch.Tensor) -> None:
        nonlocal most
        most = max(most, sum(weight.grad is not None for weight in trained))

    for weight in trained:
        weight.register_post_accumulate_grad_hook(count)
    outcome = small.step(0, 1e-3, [made_batch(small.family, 1)], 1)
    assert most == 0  # the updater's hook came first
    assert all(weight.grad is None for weight in trained)
    assert outcome.grad_norm is None


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "adafactor", "prodigy", "schedule-free"])
@pytest.mark.parametrize("method", ["full", LORA])
def test_on_the_host_fp32_weights_are_the_same_bit_for_bit(kind: str, method: Any, tiny_pipeline: TinyPipeline) -> None:
    folder, optimizer = tiny_pipeline("flux"), {"kind": kind, "betas": (0.9, 0.99)}
    assert_same(
        small_step(folder, method, optimizer=optimizer),
        small_step(folder, method, optimizer=optimizer, levers={"optimizer_offload": True}),
    )


def test_on_the_host_and_in_backward(tiny_pipeline: TinyPipeline) -> None:
    folder, both = tiny_pipeline("flux"), {"optimizer_offload": True, "fused_backward": True}
    assert_same(small_step(folder, train=NO_CLIPPING), small_step(folder, train=NO_CLIPPING, levers=both))


def test_on_the_host_bf16_weights_lose_nothing(tiny_pipeline: TinyPipeline) -> None:
    """Weights of bf16 follow an fp32 copy: updates too small for them arrive when they have added up."""
    folder = tiny_pipeline("flux")
    host = small_step(folder, train=BF16, levers={"optimizer_offload": True})
    plain = small_step(folder, train=BF16)
    start = {name: weight.detach().clone() for name, weight in host.step.trained.items()}
    for small in (host, plain):
        for step in range(3):
            small.step(step, 1e-7, [made_batch(small.family, 1)], 1)
    num_lost = 0
    for name, weight in host.step.trained.items():
        master = host.step.optimizer.save(weight)["master"]
        assert master.dtype == torch.float32
        assert torch.equal(master.to(torch.bfloat16), weight)
        moved = master != start[name].float()
        num_lost += int((moved & (plain.step.trained[name] == start[name])).sum())
    assert num_lost > 0.9 * sum(weight.numel() for weight in start.values())


def test_fp16_skips_a_step_on_the_host_too(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), train={"precision": "fp16"}, levers={"optimizer_offload": True})
    small.step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = checksums(small.step.trained)
    small.step(0, 1e-3, [made_batch(small.family, 1)], 1)
    assert checksums(small.step.trained) == before
    assert small.step.optimizer.save(next(iter(small.step.trained.values()))) == {}


def test_a_planner_is_told_what_goes_to_the_host(tiny_pipeline: TinyPipeline) -> None:
    seen: list[torch.Tensor] = []
    with watching_host(seen.append):
        levers = {"optimizer_offload": True, "ema_offload": True}
        small = small_step(tiny_pipeline("flux"), LORA, train={"ema": {}}, levers=levers)
        num_weights = len(small.step.trained)
        assert len(seen) == 2 * num_weights  # a copy for the optimizer, one for the average
        small.step(0, 1e-3, [made_batch(small.family, 1)], 1)
    assert len(seen) == 4 * num_weights  # gradients, and the weights for the average


def test_average_on_the_host_is_the_same(tiny_pipeline: TinyPipeline) -> None:
    averages: list[MovingAverage] = []
    for levers in ({}, {"ema_offload": True}):
        small = small_step(tiny_pipeline("flux"), LORA, train={"ema": {"decay": 0.9}}, levers=levers)
        losses(small)
        assert small.step.ema is not None
        averages.append(small.step.ema)
    here, there = averages
    assert there.on_host
    assert not here.on_host
    for name, average in here.average.items():
        assert torch.equal(average, there.average[name])
