"""All levers together: one order, one record of what they came to, on shapes alone as on real weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.core.errors import Refused
from foretune.models.locating import open_family
from foretune.step.building import assemble, build_step
from tests.step.levers.deep_steps import DROPPING, LORA, assert_equal, deep_step, loss_and_gradients
from tests.step.small_steps import made_batch, small_experiment

TinyPipeline = Callable[..., Path]

ALL = {"gradient_checkpointing": 1, "checkpoint_segment": 2, "activation_offload": True, "attention": "flash"}
SWAPPED = {**ALL, "block_swap": 3}


@pytest.mark.parametrize(
    ("levers", "effective"),
    [
        ({}, {"num_checkpointed_blocks": 0}),
        ({"gradient_checkpointing": 0.5}, {"num_checkpointed_blocks": 3}),
        (
            {"gradient_checkpointing": 1, "checkpoint_stride": 3},
            {"num_checkpointed_blocks": 3},
        ),
        (
            {"gradient_checkpointing": 1, "checkpoint_segment": 3},
            {"num_checkpointed_blocks": 6, "num_checkpointed_segments": 3},
        ),
        (
            {"gradient_checkpointing": 1, "checkpoint_parts": "feed_forward"},
            # The single blocks compute theirs beside attention.
            {
                "num_checkpointed_blocks": 0,
                "num_checkpointed_feed_forwards": 4,
                "num_blocks_without_feed_forward": 4,
            },
        ),
        ({"attention": "math"}, {"num_checkpointed_blocks": 0, "attention": "math"}),
        ({"activation_offload": True}, {"num_checkpointed_blocks": 0, "activation_offload": True}),
        ({"compile": "regional"}, {"num_checkpointed_blocks": 0, "num_compiled_blocks": 6}),
    ],
)
def test_what_the_levers_came_to(
    levers: dict[str, Any], effective: dict[str, Any], tiny_pipeline: TinyPipeline
) -> None:
    family = open_family(tiny_pipeline("flux"))
    denoiser = family.denoiser_on_meta(torch.float32)
    applied = assemble(small_experiment(LORA, levers=levers), family, denoiser).levers
    assert applied.effective == {"num_blocks": 6, **effective}


def test_swapped_blocks_are_named_with_their_bytes(tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline("flux"))
    denoiser = family.denoiser_on_meta(torch.bfloat16)
    levers = {"gradient_checkpointing": 1, "block_swap": 2}
    applied = assemble(small_experiment(LORA, levers=levers), family, denoiser).levers
    frozen = (p.nbytes for index in (2, 5) for p in family.blocks(denoiser)[index].parameters() if not p.requires_grad)
    assert applied.effective["swapped_blocks"] == [2, 5]
    assert applied.effective["swapped_bytes"] == sum(frozen)


def test_convolutions_are_counted(tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline("ddpm"))
    denoiser = family.denoiser_on_meta(torch.float32)
    applied = assemble(small_experiment(levers={"channels_last": True}), family, denoiser).levers
    num_convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in denoiser.modules())
    assert applied.effective["num_channels_last_convolutions"] == num_convolutions > 0


def test_blocks_without_feed_forward_parts_are_refused(tiny_pipeline: TinyPipeline) -> None:
    """At half of the blocks of this small model only single ones could be chosen; there the lever does nothing."""
    family = open_family(tiny_pipeline("flux"))
    levers = {"gradient_checkpointing": 0.2, "checkpoint_parts": "feed_forward"}
    with pytest.raises(Refused, match=r"no feed-forward part.*Nearest: levers\.checkpoint_parts=blocks"):
        assemble(small_experiment(LORA, levers=levers), family, family.denoiser_on_meta(torch.float32))


@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_all_at_once_change_no_bit(name: str, tiny_pipeline: TinyPipeline) -> None:
    depths = {"flux": (3, 4), "sd3": (2, 3)}[name]
    train = {"precision": "bf16"}
    found = loss_and_gradients(deep_step(tiny_pipeline(name), depths, DROPPING, train=train, levers=SWAPPED))
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline(name), depths, DROPPING, train=train)))


@pytest.mark.parametrize("method", ["full", DROPPING])
def test_steps_are_the_same_with_all_levers(method: Any, tiny_pipeline: TinyPipeline) -> None:
    """Several whole steps, the update in the backward pass included: what is trained ends bit for bit the same."""
    ends = []
    for levers in ({}, {**ALL, "fused_backward": True} if method == "full" else {**SWAPPED, "fused_backward": True}):
        small = deep_step(tiny_pipeline("flux"), (2, 3), method, train={"max_grad_norm": None}, levers=levers)
        start = {name: weight.detach().clone() for name, weight in small.step.trained.items()}
        for step in range(3):
            small.step(step, 1e-2, [made_batch(small.family, 2, seed=step)], 1)
        assert any(not torch.equal(start[name], weight) for name, weight in small.step.trained.items())
        ends.append({name: weight.detach() for name, weight in small.step.trained.items()})
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_they_run_on_shapes_alone(name: str, tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline(name))
    experiment = small_experiment(DROPPING, levers={**SWAPPED, "attention": "auto"})
    assembled = assemble(experiment, family, family.denoiser_on_meta(torch.float32))
    step = build_step(experiment, family, assembled, torch.device("cpu"))
    assert step(0, 1e-3, [made_batch(family, 8, device="meta")], 1).loss.device.type == "meta"
