"""What a plan does once although many devices, settings and blocks need it: counted, the same on every machine."""

from collections.abc import Iterable
from typing import Any

import pytest

from foretune.planner import verdict
from foretune.planner.asking import AdviceScope, PlanRequest, devices_named, plan_everything
from foretune.planner.block_events import Event, Templates, Variant
from foretune.planner.expansion import Expansions, expand_step, expand_variant, peaks_by_phase
from foretune.planner.overheads import Overhead, Range
from foretune.planner.replay import replay
from foretune.planner.streams import by_fate
from foretune.planner.swapping import swapped_units
from foretune.trace.shipped import read_trace

MANY = 10_000
"""Requests of a stretch with training steps; filling a cache has fewer."""
SIZES = (1.0, 4096.0, 512.0, 16.0)


@pytest.fixture
def num_requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each replay serves, in order."""
    found: list[int] = []

    def counted(events: Iterable[Event], **settings: Any) -> Any:
        listed = list(events)
        found.append(len(listed))
        return replay(listed, **settings)

    monkeypatch.setattr(verdict, "replay", counted)
    return found


@pytest.mark.parametrize(
    ("devices", "advice", "num_trainings"),
    [
        # Training, with validation, int8, and two numbers of swapped blocks.
        ("rtx-4090,l4,h100-sxm", "menu", 5),
        ("rtx-4090,l4,h100-sxm", "none", 2),
        ("a100-80gb-pcie,a100-80gb-sxm,h100-pcie,h100-sxm,laptop-cpu-8core", "none", 2),
        # Four are close to a border, which an estimate does not decide: two numbers of blocks, and a validation.
        ("all", "first", 14),
    ],
)
def test_devices_and_settings_share_replays(
    devices: str, advice: AdviceScope, num_trainings: int, num_requests: list[int]
) -> None:
    wanted = PlanRequest(target="flux.1-dev", overrides=("method.kind=lora",), advice=advice)
    for _ in plan_everything(wanted, devices_named(devices), None):
        pass
    assert sum(number > MANY for number in num_requests) == num_trainings
    in_caches = [number for number in num_requests if number <= MANY]
    assert len(in_caches) <= 2 or devices == "all", "one replay for each cache"


def test_a_limit_that_is_not_reached_is_not_replayed(num_requests: list[int]) -> None:
    none = Range(0, 0, 0, "")
    plain = Overhead(context=none, driver=none, display=none, workspaces_bytes=())
    events = [Event(0, 2**30, "activations", "forward")]
    near = verdict.judge(events, plain, 2**30, error_share=verdict.ErrorShares(0.1, 0.1))
    assert near.verdict == "tight"
    assert num_requests == [1]
    assert near.num_retries == 0
    assert near.process.low == round(2**30 * 0.9)


def test_blocks_and_depths_share_their_sorted_events(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read_trace("flux.1-dev.lora.bf16.checkpointed")
    assert trace is not None
    num_listed = 0
    listed = Templates._listed

    def counted(self: Templates, storages: Any) -> Any:
        nonlocal num_listed
        num_listed += 1
        return listed(self, storages)

    monkeypatch.setattr(Templates, "_listed", counted)
    expansions = Expansions()
    for counts in ([4, 4], [5, 4], [19, 38]):
        peaks_by_phase(trace, SIZES, counts, Variant(), expansions)
    distinct = sum(len(kind.first) + 1 + len(kind.last) for kind in trace.kinds)
    assert num_listed == distinct + 1, "each list of the trace once, and what is outside of the blocks"


def test_settings_share_the_events_of_blocks_that_they_do_not_change() -> None:
    trace = read_trace("flux.1-dev.lora.bf16.checkpointed")
    assert trace is not None
    chosen = frozenset(range(57))
    expansions = Expansions()
    one_swapped = swapped_units(tuple((number,) for number in range(57)), 1, 1)
    plain, swapping = (
        expand_step(trace, trace, SIZES, Variant(chosen=chosen, swapped=units), expansions)
        for units in ((), one_swapped)
    )
    before = {id(event) for event in plain.passing}
    new = [event for event in swapping.passing if id(event) not in before]
    assert 0 < len(new) < len(swapping.passing) / 57 * 2, "those of one block"
    whole = expand_variant(trace, trace, SIZES, Variant(chosen=chosen, swapped=one_swapped))
    assert by_fate(whole) == swapping
