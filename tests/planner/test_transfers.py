"""What goes over the bus in a step: by hand."""

from typing import Any

import pytest

from foretune import catalog
from foretune.choices.experiment import Experiment
from foretune.core.values.step_trace import (
    NEVER,
    OUTSIDE,
    TO_DEVICE,
    TO_HOST,
    BlockKind,
    Growth,
    Moment,
    StepTrace,
    Storage,
    Work,
    on_host,
)
from foretune.planner.block_events import Event
from foretune.planner.streams import by_fate
from foretune.planner.swapping import SwappedUnit
from foretune.planner.traces import Mixed, work_of
from foretune.planner.transfers import NOTHING_MOVED, Moved, moved_in_a_step, transfers_on

ONE = (1.0, 1.0, 1.0, 1.0)


def work(phase: str, kind: int, operator: str, num_bytes: int) -> Work:
    growth = Growth(terms=((float(num_bytes), (1, 0, 0, 0)),))
    return Work(phase=phase, kind=kind, operator=operator, dtype="bfloat16", count=1, flops=growth, bytes_moved=growth)


def made_trace(activations: int, *, share: float) -> StepTrace:
    """Ten blocks that move their activations there and back; gradients go to the host once, and weights come back."""
    return StepTrace(
        model="made",
        method="full",
        precision="bf16",
        checkpointing=share,
        numerics="cuda",
        phases=("setup", "forward", "backward", "optimizer"),
        backward_phases=(2,),
        categories=(),
        growths=(),
        outside=(),
        kinds=(BlockKind(name="kind 0", count=10, first=(), middle=(), last=()),),
        work=(
            work("setup", OUTSIDE, TO_HOST, 10**9),
            work("forward", 0, TO_HOST, activations),
            work("forward", 0, "matmul", 10**6),
            work("backward", 0, TO_DEVICE, activations),
            work("optimizer", OUTSIDE, TO_HOST, 5000),
            work("optimizer", OUTSIDE, TO_DEVICE, 7000),
        ),
        made_with={},
        made_from="",
    )


MIXED = Mixed(made_trace(100, share=0), made_trace(10, share=1), frozenset({1, 3, 9}))


def asked(**sections: Any) -> Experiment:
    return Experiment.model_validate(
        {"model": "made", "method": {"kind": "full"}, "data": {"kind": "shapes"}, "train": {"steps": 1}, **sections}
    )


def test_each_pass_moves_activations_and_each_step_gradients() -> None:
    """Of the activations by what there is: here less than block by block, because neighbours share some."""
    experiment = asked(train={"steps": 1, "gradient_accumulation": 4})
    events = [
        Event(1, 90, on_host("activations"), "forward"),
        Event(2, 600, on_host("activations"), "forward"),
        Event(1, 0, on_host("activations"), "backward"),
        Event(2, 0, on_host("activations"), "backward"),
        Event(3, 70, on_host("optimizer state"), "optimizer"),
    ]
    assert moved_in_a_step(MIXED, experiment, ONE, by_fate(events)) == Moved(4 * 690 + 5000, 4 * 690 + 7000)


def test_swapped_weights_and_the_average_are_put_in() -> None:
    """One block of 300 bytes that is copied twice in a pass."""
    weights = Storage(made=Moment(phase=0), released=Moment(phase=NEVER), growth=0, category=0)
    trace = MIXED.kept.model_copy(
        update={
            "work": (),
            "categories": ("frozen weights",),
            "growths": (Growth(terms=((300.0, (0, 0, 0, 0)),)),),
            "kinds": (BlockKind(name="kind 0", count=10, first=(), middle=(weights,), last=()),),
        }
    )
    events = by_fate([Event(1, 40, "trained weights", "setup")])
    nothing, swapped = Mixed(trace, trace, frozenset()), (SwappedUnit(3, 1, 1, num_copies=2),)
    train = {"steps": 1, "gradient_accumulation": 2, "ema": {}}
    with_average = asked(train=train, levers={"ema_offload": True})
    assert moved_in_a_step(nothing, with_average, ONE, events, swapped) == Moved(40, 2 * 600, 2 * 600)
    assert moved_in_a_step(nothing, asked(train=train), ONE, events, swapped).to_host_bytes == 0


def test_work_of_a_mixed_step_is_counted_by_its_blocks() -> None:
    times = {(id(found), count) for found, count in work_of(MIXED) if found.operator == "matmul"}
    again, kept = (trace.work[2] for trace in (MIXED.checkpointed, MIXED.kept))
    assert times == {(id(again), 3), (id(kept), 7)}


@pytest.mark.parametrize(
    ("device", "link", "gb_per_s", "is_assumed"),
    [
        ("rtx-4090", "PCIe 4.0 x16", 32.0, False),
        ("rtx-5090", "PCIe 5.0 x16", 64.0, False),
        ("h100-pcie", "PCIe5", 64.0, False),
        ("a100-80gb-sxm", "PCIe 4.0 x16", 32.0, True),
        ("h100-sxm", "PCIe 5.0 x16", 64.0, True),
        ("mi300x", "PCIe 5.0 x16", 64.0, True),
    ],
)
def test_the_least_time_is_that_of_the_fuller_direction(
    device: str, link: str, gb_per_s: float, is_assumed: bool
) -> None:
    found = transfers_on(Moved(64 * 10**9, 16 * 10**9), catalog.device(device))
    assert found is not None
    assert (found.link, found.gb_per_s, found.is_link_assumed) == (link, gb_per_s, is_assumed)
    assert found.least_s == pytest.approx(64 / gb_per_s)


def test_where_nothing_moves_nothing_is_said() -> None:
    assert transfers_on(NOTHING_MOVED, catalog.device("rtx-4090")) is None
    assert transfers_on(Moved(1, 1), catalog.device("laptop-cpu-8core")) is None
    assert transfers_on(Moved(1, 1), catalog.device("m4-max-40")) is None


def test_the_assumed_rate_is_the_catalogues_for_that_link() -> None:
    known = transfers_on(Moved(1, 1), catalog.device("l4"))
    assumed = transfers_on(Moved(1, 1), catalog.device("a100-40gb-sxm"))
    assert known is not None
    assert assumed is not None
    assert (known.link, known.gb_per_s) == (assumed.link, assumed.gb_per_s)
