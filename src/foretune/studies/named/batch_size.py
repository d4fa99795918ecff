"""Training time against batch size."""

from typing import Any

from foretune.studies.named.base import (
    Study,
    StudyAxis,
    StudyPoint,
    StudyRequest,
    StudyResult,
    StudyValue,
    as_fast,
    measure_in_turns,
    point,
    warnings_of,
)
from foretune.studies.named.small_models import experiment_on

_NUM_SAMPLES = 50_000
"""An epoch of CIFAR-10, so that the time means something."""


def _sizes(is_quick: bool) -> tuple[int, ...]:
    return (1, 4) if is_quick else (1, 2, 4, 8, 16)


def _run(request: StudyRequest) -> StudyResult:
    folder, num_steps = request.model_folder("flux"), 10 if request.is_quick else 30
    settings: dict[str, dict[str, Any]] = {
        f"batch {size}": experiment_on(folder, "batch-size", batch_size=size) for size in _sizes(request.is_quick)
    }
    series = measure_in_turns(request, settings, num_steps=num_steps)
    points: list[StudyPoint] = []
    for size, (label, one) in zip(_sizes(request.is_quick), series.items(), strict=True):
        values = {
            "epoch_min": StudyValue.of(one.mean_step_s, _NUM_SAMPLES / size / 60),
            "samples_per_s": StudyValue.rate(one.mean_step_s, size),
        }
        points.append(point(label, one, values, x=size))
    words = as_fast(series[points[0].label], series[points[-1].label], "times as many samples/s", statistic="mean")
    return StudyResult(
        name="batch-size",
        title="Training time against batch size",
        setting="batch size",
        is_line=True,
        axes=(
            StudyAxis(key="epoch_min", title=f"time for {_NUM_SAMPLES:,} samples, min"),
            StudyAxis(key="samples_per_s", title="samples/s"),
        ),
        points=tuple(points),
        findings=(f"{points[-1].label} against {points[0].label}: {words}",),
        measured_with={"model": str(folder), "num_steps": num_steps, "data": "synthetic"},
        warnings=warnings_of(series),
    )


BATCH_SIZE = Study(
    name="batch-size",
    title="Training time against batch size",
    run=_run,
    num_processes=lambda is_quick: len(_sizes(is_quick)) * (2 if is_quick else 3),
    extra_s=lambda is_quick: 5 if is_quick else 90,
)
