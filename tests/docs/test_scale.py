"""The tables of docs/scale.md are what the planner says."""

import re
from pathlib import Path

import pytest

import foretune as ft
from foretune.core.units import GIB
from foretune.core.vocabulary import MemoryPart, RunPhase
from tests.docs import scale_page

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
FULL = {"method.kind": "full", "train.weight_dtype": "bf16", "levers.gradient_checkpointing": 1}
DIVIDED = (MemoryPart.TRAINED_WEIGHTS, MemoryPart.OPTIMIZER_STATE, MemoryPart.GRADIENTS)
OF_A_SAMPLE = (MemoryPart.ACTIVATIONS, MemoryPart.TEMPORARIES)


def rows(name: str) -> list[list[str]]:
    table = PAGE.split(f"<!-- {name} -->")[1].split("\n\n")[1]
    return [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]


def step_gib(model: str, devices: int, parts: tuple[MemoryPart, ...], **size: int) -> tuple[float, float]:
    """Of one device: the whole step, and some of its parts."""
    parallel = {"parallel.devices": devices, **({"parallel.sharding": "full"} if devices > 1 else {})}
    (plan,) = ft.plan(model, {**FULL, **parallel}, on=["h100-sxm"], advice="none", **size)  # type: ignore[arg-type]
    (step,) = [phase for phase in plan.phases if phase.phase == RunPhase.STEP]
    return step.device_bytes / GIB, sum(step.device_bytes_by_part.get(part, 0) for part in parts) / GIB


def shown(*figures: float) -> list[str]:
    return [f"{figure:.1f}" for figure in figures]


# The others are of the same rule, and each plan takes seconds.
@pytest.mark.parametrize("number", [1, 3])
def test_memory_of_one_device(number: int) -> None:
    devices, *figures = rows("memory")[number]
    size = int(devices.replace(",", ""))
    flux, wan = (step_gib(model, size, DIVIDED) for model in ("flux.1-dev", "wan2.1-t2v-14b"))
    assert figures == shown(*flux, *wan)


@pytest.mark.parametrize("number", [1, 2])
def test_memory_of_videos(number: int) -> None:
    size, frames, *figures = rows("video")[number]
    height, width = (int(side) for side in size.split(" x "))
    found = step_gib("wan2.1-t2v-14b", 64, OF_A_SAMPLE, height=height, width=width, frames=int(frames))
    assert figures == shown(*found)


def test_speeds_are_those_of_the_catalogue() -> None:
    assert set(re.findall(r"<!-- figures: (\w+) -->", PAGE)) == {"medians", "rows", "left_out", "flux"}
    assert scale_page.written(PAGE, scale_page.all_results()) == PAGE, "Run: python -m tests.docs.scale_page"
