"""The same code builds the step of a real, a small and a shapes-only model: what a planner stands on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune import catalog
from foretune.choices.checkpointing import chosen_blocks
from foretune.models.locating import family_from_catalogue, open_family
from foretune.step.building import assemble, attach_method, build_step
from foretune.step.weights import num_trained_and_all
from tests.step.small_steps import made_batch, small_experiment, small_step

TinyPipeline = Callable[..., Path]

LORA = {"kind": "lora", "rank": 2, "alpha": 4, "dropout": 0.1}


def shapes(parameters: dict[str, torch.nn.Parameter]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (parameter.shape, parameter.dtype) for name, parameter in parameters.items()}


@pytest.mark.parametrize("name", ["ddpm", "sd3", "flux"])
@pytest.mark.parametrize("method", ["full", LORA])
def test_meta_and_real_models_have_the_same_weights(name: str, method: Any, tiny_pipeline: TinyPipeline) -> None:
    real = small_step(tiny_pipeline(name), method).method
    family = open_family(tiny_pipeline(name))
    denoiser = family.denoiser_on_meta(torch.float32)
    attached = assemble(small_experiment(method), family, denoiser).method
    assert shapes(attached.trained()) == shapes(real.trained())
    assert shapes(attached.frozen()) == shapes(real.frozen())
    assert {p.device.type for p in denoiser.parameters()} == {"meta"}
    assert denoiser.training


@pytest.mark.parametrize("name", ["ddpm", "sd3", "flux"])
@pytest.mark.parametrize("method", ["full", LORA])
def test_the_whole_step_runs_on_shapes_alone(name: str, method: Any, tiny_pipeline: TinyPipeline) -> None:
    """Forward, backward with checkpointing, clipping, AdamW, moving average: with nothing computed and no memory."""
    family = open_family(tiny_pipeline(name))
    experiment = small_experiment(method, levers={"gradient_checkpointing": 0.5}, train={"ema": {}})
    attached = assemble(experiment, family, family.denoiser_on_meta(torch.float32))
    step = build_step(experiment, family, attached, torch.device("cpu"))
    outcome = step(0, 1e-3, [made_batch(family, 2, device="meta")] * 2, 2)
    assert outcome.loss.device.type == "meta"
    assert outcome.loss.shape == ()
    moments = [state["exp_avg"] for state in step.optimizer.state.values()]
    assert [m.shape for m in moments] == [p.shape for p in step.trained.values()]


@pytest.mark.parametrize("name", ["flux.1-dev", "sd3.5-large", "ddpm-cifar10"])
def test_adapters_of_published_models_have_the_catalogued_size(name: str) -> None:
    family = family_from_catalogue(name)
    denoiser = family.denoiser_on_meta(torch.bfloat16)
    method = attach_method(small_experiment({"kind": "lora", "rank": 16}), family, denoiser)
    row = catalog.denoiser(name)
    assert row.lora_params_per_rank is not None
    num_adapter = 16 * row.lora_params_per_rank.attn_qkvo
    assert num_trained_and_all(method) == (num_adapter, row.num_params + num_adapter)
    assert {p.dtype for p in method.trained().values()} == {torch.float32}
    assert {p.dtype for p in method.frozen().values()} == {torch.bfloat16}


def test_step_has_what_the_experiment_asks_for(tiny_pipeline: TinyPipeline) -> None:
    step = small_step(
        tiny_pipeline("flux"),
        LORA,
        train={"max_grad_norm": None, "seed": 9, "ema": {"decay": 0.5}},
        objective={"guidance_scale": 1.5, "shift": 2.0},
        optimizer={"lr": 0.25},
    ).step
    assert step.max_grad_norm is None
    assert step.guidance_scale == 1.5
    assert step.dropout_seed == 9
    assert step.ema is not None
    assert step.ema.decay == 0.5
    assert step.optimizer.param_groups[0]["lr"] == 0.25
    assert vars(step.objective)["shift"] == 2.0


def test_the_asked_share_of_blocks_is_checkpointed(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), levers={"gradient_checkpointing": 0.5})
    blocks = small.family.blocks(small.step.denoiser)
    wrapped = tuple(index for index, block in enumerate(blocks) if "forward" in vars(block))
    assert wrapped == chosen_blocks(len(blocks), 0.5)
