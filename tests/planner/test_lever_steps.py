"""Steps with levers, from traces of fewer blocks, against recordings of those very steps: device, host and bus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.core.values.step_trace import TO_DEVICE, TO_HOST
from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.planner.block_events import Event
from foretune.planner.expansion import expand_variant
from foretune.planner.live_memory import find_peak
from foretune.planner.sizing import StepSize
from foretune.planner.streams import by_fate, device_events, host_events
from foretune.planner.traces import Traces, mixed_step, variant_of
from foretune.planner.transfers import Moved, moved_in_a_step
from foretune.trace.geometry import geometry_of
from foretune.trace.making import make_point_trace
from foretune.trace.recorder import Allocation
from foretune.trace.tracing import StepSizes, TracedStep, trace_step

pytestmark = pytest.mark.usefixtures("operators_are_remembered")

SIZES = StepSizes(batch_size=4, height_px=128, width_px=128, num_text_tokens=32)
SIZE = StepSize(batch_size=4, height_px=128, width_px=128, num_frames=1, num_text_tokens=32, rank=8)
LORA, FULL = {"kind": "lora", "rank": 8}, {"kind": "full"}
CLOSE = 0.005
# Of a segment, all weights are taken to be there until its backward pass ends; they go one after another.
CLOSE_IN_SEGMENTS = 0.025
# What comes back in the backward pass is counted by blocks where it is more than activations.
CLOSE_ON_THE_BUS = 0.01

CASES: dict[str, tuple[tuple[int, int], dict[str, Any], dict[str, Any]]] = {
    "segments of two, one block left over": ((11, 2), LORA, {"levers": {"checkpoint_segment": 2}}),
    "every fourth block": ((6, 2), LORA, {"levers": {"checkpoint_stride": 4}}),
    "activations of half on the host": (
        (5, 2),
        LORA,
        {"levers": {"gradient_checkpointing": 0.5, "activation_offload": True}},
    ),
    "five blocks swapped": ((6, 2), LORA, {"levers": {"block_swap": 5}}),
    "five blocks swapped, none ahead": ((6, 2), LORA, {"levers": {"block_swap": 5, "block_swap_prefetch": 0}}),
    "seven blocks swapped, three ahead": ((6, 2), LORA, {"levers": {"block_swap": 7, "block_swap_prefetch": 3}}),
    "segments of two, six blocks swapped": ((6, 2), LORA, {"levers": {"checkpoint_segment": 2, "block_swap": 6}}),
    "optimizer and average on the host": (
        (5, 2),
        FULL,
        {"levers": {"optimizer_offload": True, "ema_offload": True}, "train": {"ema": {}}},
    ),
    "updates in the backward pass": (
        (5, 2),
        FULL,
        {"levers": {"fused_backward": True}, "train": {"max_grad_norm": None}},
    ),
}


def asked(method: dict[str, Any], *, levers: dict[str, Any], train: dict[str, Any] | None = None) -> Experiment:
    return Experiment.model_validate(
        {
            "model": "tiny",
            "method": method,
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "precision": "bf16", **(train or {})},
            "levers": {"gradient_checkpointing": 1.0, **levers},
        }
    )


def predicted(family: Family, experiment: Experiment) -> tuple[list[Event], Moved]:
    traces = Traces(lambda form, _: make_point_trace(form.experiment(), family, SIZES, SIZE.rank, "cuda"))
    geometry = geometry_of(family)
    sizes = SIZE.in_trace(geometry)
    mixed = mixed_step(traces, experiment, SIZE, geometry)
    variant = variant_of(experiment, geometry)
    events = expand_variant(mixed.kept, mixed.checkpointed, sizes, variant)
    return events, moved_in_a_step(mixed, experiment, sizes, by_fate(events), variant.swapped)


def true_peaks(step: TracedStep) -> tuple[int, int]:
    """The most live bytes on the device and on the host, from when the step begins."""
    live, peak = [0, 0], [0, 0]
    sizes: dict[int, tuple[int, int]] = {}
    for event in step.recording.events:
        if isinstance(event, Allocation):
            side = int(event.number in step.on_host)
            num_bytes = event.num_bytes if side else -(-event.num_bytes // 512) * 512
            sizes[event.number] = (side, num_bytes)
            live[side] += num_bytes
        else:
            side, num_bytes = sizes.pop(event.number)
            live[side] -= num_bytes
        if event.place.phase != "setup":
            peak = [max(most, now) for most, now in zip(peak, live, strict=True)]
    return peak[0], peak[1]


def true_moved(step: TracedStep) -> Moved:
    totals = dict.fromkeys((TO_HOST, TO_DEVICE), 0)
    for operation in step.recording.operations:
        if operation.kind in totals and operation.place.phase != "setup":
            totals[operation.kind] += operation.num_bytes_moved
    return Moved(totals[TO_HOST], totals[TO_DEVICE])


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", CASES)
def test_levers_are_what_would_have_been_recorded(
    tiny_pipeline: Callable[..., Path], report_figure: Callable[[str], None], name: str
) -> None:
    depths, method, sections = CASES[name]
    family = open_family(tiny_pipeline("flux")).with_depths(depths)
    experiment = asked(method, **sections)
    events, moved = predicted(family, experiment)
    truth = trace_step(experiment, family, SIZES, "cuda")
    on_device, on_host = true_peaks(truth)
    device_error = find_peak(device_events(events), 512).num_bytes / on_device - 1
    host_bytes = find_peak(host_events(events)).num_bytes
    report_figure(f"tiny flux, {name}: {device_error:+.3%} from a recording; {host_bytes} of {on_host} B on the host")
    is_segment_swapped = "segments" in name and "swapped" in name
    assert (0 <= device_error < CLOSE_IN_SEGMENTS) if is_segment_swapped else (abs(device_error) < CLOSE)
    assert host_bytes == pytest.approx(on_host, rel=CLOSE)
    assert (on_host > 0) == ("host" in name or "swapped" in name)
    bus = true_moved(truth)
    assert moved.to_host_bytes == pytest.approx(bus.to_host_bytes, rel=CLOSE_ON_THE_BUS)
    assert moved.to_device_bytes == pytest.approx(bus.to_device_bytes, rel=CLOSE_ON_THE_BUS)
