"""Loader processes from 0 to 8, on JPEG files that are read, decoded and cut for every step."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretune.measure.bench_summary import Series
from foretune.studies.named.base import (
    Study,
    StudyAxis,
    StudyPoint,
    StudyRequest,
    StudyResult,
    StudyValue,
    as_fast,
    mean,
    measure_in_turns,
    point,
    warnings_of,
)
from foretune.studies.named.small_models import experiment_on, write_pictures

_BATCH_SIZE = 8


def _counts(is_quick: bool) -> tuple[int, ...]:
    return (0, 1) if is_quick else tuple(range(9))


def _settings(folder: Path, pictures: Path, is_quick: bool) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for count in _counts(is_quick):
        mapping: dict[str, Any] = experiment_on(folder, "workers", resolution=32, batch_size=_BATCH_SIZE)
        mapping["method"] = {"kind": "full"}
        data = {key: value for key, value in mapping["data"].items() if key != "num_samples"}
        mapping["data"] = {**data, "kind": "folder", "path": str(pictures), "num_workers": count, "crop": "random"}
        mapping["levers"] = {"cache_latents": False}
        made[f"workers {count}"] = mapping
    return made


def _run(request: StudyRequest) -> StudyResult:
    folder, num_steps = request.model_folder("ddpm"), 10 if request.is_quick else 40
    pictures = write_pictures(request.directory / "pictures", num=8 if request.is_quick else 32)
    series = measure_in_turns(
        request, _settings(folder, pictures, request.is_quick), num_steps=num_steps, is_synthetic=False
    )
    points: list[StudyPoint] = []
    for count, (label, one) in zip(_counts(request.is_quick), series.items(), strict=True):
        values = {"step_ms": StudyValue.of(one.mean_step_s, 1000), "waiting": StudyValue(_waiting_share(one))}
        points.append(point(label, one, values, x=count))
    words = f"without loader processes {mean(points[0].values['waiting']):.0%} of the step goes to data; "
    words += _best_of(points[1:], points[0], series)
    return StudyResult(
        name="workers",
        title="Step time against loader processes",
        setting="loader processes (data.num_workers)",
        is_line=True,
        axes=(
            StudyAxis(key="step_ms", title="mean step time, ms"),
            StudyAxis(key="waiting", title="share of the step spent on data"),
        ),
        points=tuple(points),
        findings=(words,),
        measured_with={
            "model": str(folder),
            "num_steps": num_steps,
            "data": "JPEG files of 1024 px, decoded at each step",
        },
        warnings=warnings_of(series),
    )


def _best_of(others: Sequence[StudyPoint], alone: StudyPoint, series: Mapping[str, Series]) -> str:
    """The fastest that has a number, against none at all."""
    best = min(others, key=lambda other: mean(other.values["step_ms"], math.inf))
    if best.values["step_ms"].value is None:
        return "none of the others came to rest"
    ratio = as_fast(series[alone.label], series[best.label], statistic="mean", num_comparisons=len(others))
    return f"fastest of the others, {best.label}, against {alone.label}: {ratio}"


def _waiting_share(series: Series) -> float | None:
    """Of all repeats: how much of the steps was waiting for, or making, data."""
    totals: list[dict[str, float]] = [
        repeat.measured["phases_s"] for repeat in series.repeats if repeat.measured["phases_s"]
    ]
    if not totals:
        return None
    return sum(one.get("data", 0.0) for one in totals) / sum(sum(one.values()) for one in totals)


WORKERS = Study(
    name="workers",
    title="Step time against loader processes, 0 to 8",
    run=_run,
    num_processes=lambda is_quick: len(_counts(is_quick)) * (2 if is_quick else 3),
    extra_s=lambda is_quick: 5 if is_quick else 60,
)
