"""The quick answer is the full one to within a percent."""

from collections.abc import Callable
from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.planner.block_events import CUDA_ROUNDING_BYTES
from foretune.planner.live_memory import find_peak
from foretune.planner.quick import quick_peak_bytes
from foretune.planner.sizing import StepSize, size_of
from foretune.planner.traces import Traces, step_events
from foretune.trace.shipped import Geometry, geometries

# Stacks of one kind of block and of two, images and videos.
MODELS = ("flux.1-dev", "sd3-medium", "sd3.5-large", "lumina-image-2.0", "cogvideox-2b", "wan2.1-t2v-1.3b")
CASES: tuple[tuple[float, int, int, dict[str, Any]], ...] = (
    (0.0, 1, 16, {}),
    (0.0, 4, 64, {"ema": {}}),
    (0.25, 4, 16, {}),
    (0.5, 2, 16, {}),
    (0.75, 1, 16, {}),
    (1.0, 1, 16, {}),
    (1.0, 8, 4, {"gradient_accumulation": 2, "ema": {}}),
)


def asked(model: str, share: float, batch_size: int, rank: int, **train: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "model": model,
            "method": {"kind": "lora", "rank": rank},
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "precision": "bf16", "batch_size": batch_size, **train},
            "levers": {"gradient_checkpointing": share},
        }
    )


def full_peak_bytes(traces: Traces, experiment: Experiment, size: StepSize, geometry: Geometry) -> int:
    return find_peak(step_events(traces, experiment, size, geometry), CUDA_ROUNDING_BYTES).num_bytes


@pytest.mark.parametrize("model", MODELS)
def test_the_quick_answer_is_the_full_one_to_within_a_percent(model: str, report_figure: Callable[[str], None]) -> None:
    geometry, traces = geometries()[model], Traces()
    errors = []
    for share, batch_size, rank, train in CASES:
        experiment = asked(model, share, batch_size, rank, **train)
        size = size_of(experiment, geometry)
        quick = quick_peak_bytes(traces, experiment, size, geometry)
        errors.append(quick / full_peak_bytes(traces, experiment, size, geometry) - 1)
    report_figure(f"{model}: the quick answer is {min(errors):+.3%} to {max(errors):+.3%} from the full one")
    assert max(map(abs, errors)) < 0.01


@pytest.mark.parametrize(
    ("model", "levers"),
    [
        ("flux.1-dev", {"block_swap": 10}),
        ("flux.1-dev", {"block_swap": 57}),
        ("sd3.5-large", {"block_swap": 19}),
        ("flux.1-dev", {"checkpoint_stride": 2}),
    ],
)
def test_levers_that_need_no_trace_of_their_own(model: str, levers: dict[str, Any]) -> None:
    geometry, traces = geometries()[model], Traces()
    plain = asked(model, 1.0, 1, 16)
    experiment = plain.model_copy(update={"levers": plain.levers.model_copy(update=levers)})
    size = size_of(experiment, geometry)
    quick = quick_peak_bytes(traces, experiment, size, geometry)
    assert quick == pytest.approx(full_peak_bytes(traces, experiment, size, geometry), rel=0.02)
    assert abs(quick / quick_peak_bytes(traces, plain, size, geometry) - 1) > 0.1


@pytest.mark.parametrize("resolution_px", [256, 512, 1024])
def test_other_sizes(resolution_px: int) -> None:
    geometry, traces = geometries()["sd3-medium"], Traces()
    experiment = asked("sd3-medium", 0.5, 3, 32)
    size = size_of(experiment, geometry, height_px=resolution_px, width_px=resolution_px)
    quick = quick_peak_bytes(traces, experiment, size, geometry)
    assert quick == pytest.approx(full_peak_bytes(traces, experiment, size, geometry), rel=0.01)


def test_answers_of_one_model_differ_where_they_should() -> None:
    """What is remembered of one question is not given as the answer to another."""
    geometry, traces = geometries()["sd3-medium"], Traces()
    questions = [
        asked("sd3-medium", 1.0, 1, 16),
        asked("sd3-medium", 0.0, 1, 16),
        asked("sd3-medium", 1.0, 2, 16),
        asked("sd3-medium", 1.0, 1, 64),
        asked("sd3-medium", 1.0, 1, 16, ema={}),
        asked("sd3-medium", 1.0, 1, 16, ema={}, gradient_accumulation=2),
    ]
    answers = [quick_peak_bytes(traces, one, size_of(one, geometry), geometry) for one in questions]
    assert len(set(answers)) == len(answers)
    fresh = [quick_peak_bytes(Traces(), one, size_of(one, geometry), geometry) for one in questions]
    assert answers == fresh
