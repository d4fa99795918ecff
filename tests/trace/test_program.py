"""A trace made at small sizes and few blocks is the full one, to the byte."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.core.values.step_trace import StepTrace
from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.planner.expansion import expand
from foretune.planner.live_memory import find_peak
from foretune.trace.program import IrregularStep, block_runs, build_program
from foretune.trace.recorder import Allocation
from foretune.trace.timeline import Timeline, timeline
from foretune.trace.tracing import StepSizes, TracedStep, trace_step

PROBES = [(2, 64, 64, 16, 4), (3, 64, 64, 16, 4), (2, 128, 64, 16, 4), (2, 64, 64, 32, 4), (2, 64, 64, 16, 8)]
CHECK = (4, 128, 128, 24, 2)
SHALLOW, DEEP = (4, 4), (7, 9)


def with_depth(folder: Path, depths: tuple[int, int]) -> Family:
    family = open_family(folder)
    config = dict(family.architecture.denoiser)
    config["num_layers"], config["num_single_layers"] = depths
    return type(family)(dataclasses.replace(family.architecture, denoiser=config))


def traced(
    family: Family, sizes: tuple[int, ...], *, method: str, share: float, precision: str, **train: Any
) -> TracedStep:
    batch_size, height_px, width_px, text, rank = sizes
    choice = {"kind": "lora", "rank": rank} if method == "lora" else {"kind": "full"}
    experiment = Experiment.model_validate(
        {
            "model": "tiny",
            "method": choice,
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "precision": precision, **train},
            "levers": {"gradient_checkpointing": share},
        }
    )
    step_sizes = StepSizes(batch_size=batch_size, height_px=height_px, width_px=width_px, num_text_tokens=text)
    return trace_step(experiment, family, step_sizes, "cuda")


def peak_of(step: TracedStep) -> int:
    """The most live bytes, added up from the raw events without any of the program's machinery."""
    live = peak = 0
    sizes: dict[int, int] = {}
    for event in step.recording.events:
        if isinstance(event, Allocation):
            sizes[event.number] = -(-event.num_bytes // 512) * 512
            live += sizes[event.number]
            peak = max(peak, live)
        else:
            live -= sizes.pop(event.number)
    return peak


def in_trace(sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    batch_size, height_px, width_px, text, rank = sizes
    return batch_size, height_px // 8 * (width_px // 8), text, rank


@cache
def step_trace(folder: Path, method: str, share: float, precision: str, accumulation: int) -> StepTrace:
    family = with_depth(folder, SHALLOW)
    probes = [p for p in PROBES if method == "lora" or p[4] == PROBES[0][4]]
    probes.append(CHECK if method == "lora" else (*CHECK[:4], PROBES[0][4]))
    options = {"method": method, "share": share, "precision": precision, "gradient_accumulation": accumulation}
    steps = [traced(family, p, **options) for p in probes]  # type: ignore[arg-type]
    lines = [timeline(step) for step in steps]
    full = [0] * DEEP[0] + [1] * DEEP[1]
    program = build_program(lines, [in_trace(p) for p in probes], block_runs(steps[0].block_kinds, full))
    phases = lines[0].phases
    return StepTrace(
        model="tiny",
        method=method,
        precision=precision,
        checkpointing=share,
        numerics="cuda",
        phases=phases,
        backward_phases=tuple(index for index, name in enumerate(phases) if name == "backward"),
        categories=tuple(program.categories),
        growths=tuple(program.growths),
        outside=program.outside,
        kinds=program.kinds,
        made_with={},
        made_from="",
    )


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("method", "share", "precision", "accumulation"),
    [("lora", 0.0, "bf16", 1), ("lora", 1.0, "bf16", 2), ("full", 0.0, "fp32", 1), ("full", 1.0, "bf16", 2)],
)
def test_other_sizes_and_depths_follow_to_the_byte(tiny_pipeline, method, share, precision, accumulation) -> None:
    folder = tiny_pipeline("flux")
    trace = step_trace(folder, method, share, precision, accumulation)
    rank = 6 if method == "lora" else PROBES[0][4]
    for sizes in [(1, 192, 64, 40, rank), (5, 64, 128, 8, rank)]:
        predicted = find_peak(expand(trace, in_trace(sizes)), 512)
        options = {"method": method, "share": share, "precision": precision, "gradient_accumulation": accumulation}
        truth = peak_of(traced(with_depth(folder, DEEP), sizes, **options))
        assert predicted.num_bytes == pytest.approx(truth, rel=1e-4)
        assert sum(predicted.by_category.values()) == predicted.num_bytes


def test_every_storage_is_released_as_often_as_it_was_made(tiny_pipeline) -> None:
    trace = step_trace(tiny_pipeline("flux"), "lora", 1.0, "bf16", 2)
    alive: set[int] = set()
    for event in expand(trace, in_trace(CHECK)):
        if event.num_bytes:
            assert event.storage not in alive
            alive.add(event.storage)
        else:
            alive.remove(event.storage)
    lasting = {"frozen weights", "trained weights", "optimizer state"}
    kept = {event.storage: event.category for event in expand(trace, in_trace(CHECK)) if event.num_bytes}
    assert {kept[storage] for storage in alive} <= lasting


def test_a_step_that_does_other_things_is_refused(tiny_pipeline) -> None:
    """The control: recordings of two different programs must not be folded into one."""
    family = with_depth(tiny_pipeline("flux"), SHALLOW)
    plain = traced(family, PROBES[0], method="lora", share=0.0, precision="bf16")
    other = traced(family, PROBES[0], method="lora", share=1.0, precision="bf16")
    lines: list[Timeline] = [timeline(plain), timeline(other)]
    with pytest.raises(IrregularStep):
        build_program(lines, [in_trace(PROBES[0])] * 2, block_runs(plain.block_kinds, plain.block_kinds))


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(IrregularStep, match="too few"):
        block_runs([0, 0, 1, 1, 1, 1], [0] * 19 + [1] * 38)
