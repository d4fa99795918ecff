"""Shapes of products in traces: those that FLOPs follow from, at any size and depth."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from foretune.choices.experiment import Experiment
from foretune.core.values.packed_trace import pack, unpack
from foretune.core.values.step_trace import OUTSIDE, StepTrace, Work
from foretune.models.locating import open_family
from foretune.trace.making import make_point_trace, make_step_trace
from foretune.trace.recorder import Operation, Recorder
from foretune.trace.tracing import StepSizes

pytestmark = pytest.mark.takes_turns

SIZES = StepSizes(batch_size=3, height_px=128, width_px=128, num_text_tokens=48)


def recorded(run: Callable[[], Any]) -> list[Operation]:
    recorder = Recorder(lambda _: None)
    with FakeTensorMode(), recorder:
        run()
    return recorder.finish().operations


def shapes(operations: list[Operation]) -> list[tuple[int, ...]]:
    return [operation.shape for operation in operations if operation.shape]


def number(*sides: int) -> Tensor:
    return torch.empty(sides, requires_grad=True)


@pytest.mark.parametrize(
    ("run", "shape"),
    [
        (lambda: number(5, 7) @ number(7, 11), (1, 5, 11, 7)),
        (lambda: F.linear(number(2, 5, 7), number(11, 7), number(11)), (1, 10, 11, 7)),
        (lambda: torch.bmm(number(3, 5, 7), number(3, 7, 11)), (3, 5, 11, 7)),
        (lambda: F.conv2d(number(2, 6, 8, 8), number(10, 6, 3, 3), padding=1), (1, 2 * 64, 10, 54)),
        (lambda: F.conv2d(number(2, 6, 8, 8), number(10, 3, 3, 3), groups=2), (2, 2 * 36, 5, 27)),
        (lambda: F.conv_transpose2d(number(2, 6, 8, 8), number(6, 10, 2, 2), stride=2), (1, 2 * 64, 6, 40)),
        (lambda: F.conv3d(number(1, 4, 5, 8, 8), number(8, 4, 3, 3, 3), padding=1), (1, 320, 8, 108)),
    ],
    ids=["matmul", "linear", "bmm", "conv", "grouped conv", "transposed conv", "conv3d"],
)
def test_flops_follow_from_the_shape(run: Callable[[], Any], shape: tuple[int, ...]) -> None:
    (operation,) = (operation for operation in recorded(run) if operation.flops)
    assert operation.shape == shape
    assert operation.flops == 2 * prod(shape)


def test_the_backward_pass_of_a_convolution_is_two_products_of_its_shape() -> None:
    def run() -> None:
        F.conv2d(number(2, 6, 8, 8), number(10, 6, 3, 3), padding=1).sum().backward()

    forward, backward = (operation for operation in recorded(run) if operation.flops)
    assert backward.shape == forward.shape
    assert backward.flops == 2 * forward.flops


def test_bytes_are_kept_for_each_tensor() -> None:
    (product,) = (operation for operation in recorded(lambda: number(5, 7) @ number(7, 11)) if operation.flops)
    assert product.bytes_by_tensor == (4 * 35, 4 * 77, 4 * 55)
    assert product.num_bytes_moved == 4 * (35 + 77 + 55)


def experiment(kind: str, share: float = 0.0, **sections: Any) -> Experiment:
    method = {"kind": "lora", "rank": 4} if kind == "lora" else {"kind": kind}
    return Experiment.model_validate(
        {
            "model": "tiny",
            "method": method,
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "precision": "bf16"},
            "levers": {"gradient_checkpointing": share},
            **sections,
        }
    )


def in_trace(sizes: StepSizes, positions: int, rank: int) -> tuple[int, int, int, int]:
    return sizes.batch_size, positions, sizes.num_text_tokens, rank


def flops_of_shape(work: Work, sizes: tuple[int, int, int, int]) -> float:
    return work.count * 2 * prod(growth.at(sizes) for growth in work.shape)


@pytest.fixture(scope="module")
def traces(tiny_pipeline: Callable[..., Path]) -> dict[str, StepTrace]:
    family = open_family(tiny_pipeline("flux")).with_depths((5, 7))
    asked = {"lora": experiment("lora"), "lora again": experiment("lora", 1.0), "full": experiment("full")}
    return {name: make_step_trace(one, family, "cuda") for name, one in asked.items()}


def test_shapes_hold_at_sizes_that_were_not_recorded(
    traces: dict[str, StepTrace], tiny_pipeline: Callable[..., Path]
) -> None:
    family = open_family(tiny_pipeline("flux")).with_depths((5, 7))
    point = make_point_trace(experiment("full"), family, SIZES, 4, "cuda")
    sizes = in_trace(SIZES, 16 * 16, 4)

    def at_sizes(trace: StepTrace) -> dict[tuple[Any, ...], int]:
        found: dict[tuple[Any, ...], int] = {}
        for work in trace.work:
            if work.shape:
                shape = tuple(round(growth.at(sizes)) for growth in work.shape)
                key = (work.phase, work.kind, work.operator, work.dtype, shape)
                found[key] = found.get(key, 0) + work.count
        return found

    assert at_sizes(traces["full"]) == at_sizes(point)
    assert len(at_sizes(point)) > 30


@pytest.mark.parametrize("name", ["lora", "lora again", "full"])
def test_flops_of_products_are_those_of_their_shapes(traces: dict[str, StepTrace], name: str) -> None:
    sizes = in_trace(SIZES, 16 * 16, 4)
    products = [work for work in traces[name].work if work.operator == "matmul"]
    assert len(products) > 20
    for work in products:
        assert work.flops.at(sizes) == pytest.approx(flops_of_shape(work, sizes))


def test_what_is_recomputed_is_the_forward_pass_of_the_blocks(traces: dict[str, StepTrace]) -> None:
    sizes = in_trace(SIZES, 16 * 16, 4)

    def flops(name: str, *, is_recomputed: bool, phase: str) -> dict[int, float]:
        found: dict[int, float] = {}
        for work in traces[name].work:
            if work.phase == phase and work.is_recomputed == is_recomputed and work.kind != OUTSIDE:
                found[work.kind] = found.get(work.kind, 0.0) + work.flops.at(sizes)
        return found

    assert flops("lora", is_recomputed=True, phase="backward") == {}
    again = flops("lora again", is_recomputed=True, phase="backward")
    forward = flops("lora", is_recomputed=False, phase="forward")
    assert again.keys() == forward.keys() == {0, 1}
    for kind, found in again.items():
        # torch stops before the last operators, whose results nothing saves.
        assert 0.8 * forward[kind] <= found <= forward[kind]
    kept, checkpointed = (flops(name, is_recomputed=False, phase="backward") for name in ("lora", "lora again"))
    assert kept == checkpointed
    assert any(part.is_recomputed and part.count > 20 for part in traces["lora again"].host_operators)
    assert not any(part.is_recomputed for part in traces["lora"].host_operators)


def test_products_with_the_base_are_marked_and_those_with_adapters_are_not(traces: dict[str, StepTrace]) -> None:
    sizes = in_trace(SIZES, 16 * 16, 4)
    products = [work for work in traces["lora"].work if work.operator == "matmul" and work.kind == 0]
    has_rank = [work for work in products if 4 in [round(growth.at(sizes)) for growth in work.shape]]
    assert has_rank
    assert not any(work.is_frozen for work in has_rank)
    assert all(work.is_frozen for work in products if work.phase == "forward" and work not in has_rank)
    assert not any(work.is_frozen for work in traces["full"].work)


def test_the_update_of_weights_grows_with_the_depth(traces: dict[str, StepTrace]) -> None:
    """AdamW reads and writes weight, gradient and two moments of each block, in one operator for all weights."""
    sizes, full = in_trace(SIZES, 16 * 16, 4), traces["full"]
    by_kind = dict.fromkeys((OUTSIDE, 0, 1), 0.0)
    for work in full.work:
        if work.phase == "optimizer":
            by_kind[work.kind] += work.bytes_moved.at(sizes)
    for kind, block in enumerate(full.kinds):
        weights = sum(
            full.growths[storage.growth].at(sizes)
            for storage in block.middle
            if full.categories[storage.category] == "trained weights"
        )
        # At least: read weight, gradient, two moments; write weight and two moments.
        assert by_kind[kind] >= 7 * weights > 0
    assert all(any(part.kind == kind and part.phase == "optimizer" for part in full.host_operators) for kind in (0, 1))


def test_bytes_of_a_product_have_the_weight_once_and_activations_for_each_sample(
    traces: dict[str, StepTrace],
) -> None:
    one, two = ((batch, 16 * 16, 48, 4) for batch in (1, 2))
    product = next(work for work in traces["lora"].work if work.shape and work.is_frozen and work.phase == "forward")
    _, m, n, k = (growth.at(one) for growth in product.shape)
    per_sample = 2 * (m * k + m * n)
    assert (product.bytes_moved.at(two) - product.bytes_moved.at(one)) / product.count == pytest.approx(per_sample)


def test_a_packed_trace_has_its_work(traces: dict[str, StepTrace]) -> None:
    for trace in traces.values():
        assert unpack(pack(trace)) == trace


def test_samples_that_are_computed_one_by_one_are_rows_of_products(tiny_pipeline: Callable[..., Path]) -> None:
    family = open_family(tiny_pipeline("z_image"))
    assert family.goes_by_samples
    trace = make_step_trace(experiment("full"), family, "cuda")
    one, three = ((batch, 16 * 16, 32, 4) for batch in (1, 3))
    for work in trace.work:
        if work.shape and work.operator == "matmul" and work.flops.at(three) > work.flops.at(one):
            assert flops_of_shape(work, three) == pytest.approx(work.flops.at(three))
    assert any(work.flops.at(three) == 3 * work.flops.at(one) for work in trace.work if work.shape)
