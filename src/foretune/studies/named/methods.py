"""Runtime of an epoch and peak memory: full fine-tuning against LoRA of three ranks."""

from typing import Any

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
from foretune.studies.named.small_models import experiment_on

_NUM_SAMPLES = 1_000
_RANKS = (4, 16, 64)


def _methods(is_quick: bool) -> dict[str, dict[str, Any]]:
    ranks = _RANKS[1:2] if is_quick else _RANKS
    return {"full": {"kind": "full"}, **{f"LoRA {rank}": {"kind": "lora", "rank": rank} for rank in ranks}}


def _run(request: StudyRequest) -> StudyResult:
    folder, num_steps = request.model_folder("small flux"), 10 if request.is_quick else 30
    settings: dict[str, dict[str, Any]] = {
        label: {**experiment_on(folder, "methods"), "method": method}
        for label, method in _methods(request.is_quick).items()
    }
    series = measure_in_turns(request, settings, num_steps=num_steps)
    points = tuple(
        point(
            label,
            one,
            {
                "epoch_min": StudyValue.of(one.mean_step_s, _NUM_SAMPLES / one.samples_per_step / 60),
                "memory_mib": StudyValue.memory_mib(one),
            },
        )
        for label, one in series.items()
    )
    full, low = points[0], points[1]
    return StudyResult(
        name="methods",
        title="Full fine-tuning against LoRA",
        setting="method",
        is_line=False,
        axes=(
            StudyAxis(key="epoch_min", title=f"time for {_NUM_SAMPLES:,} samples, min"),
            StudyAxis(key="memory_mib", title="peak memory of the process, MiB"),
        ),
        points=points,
        findings=(_finding(full, low, as_fast(series[full.label], series[low.label], statistic="mean")),),
        measured_with={"model": str(folder), "num_steps": num_steps, "data": "synthetic"},
        warnings=warnings_of(series),
    )


def _finding(full: StudyPoint, low: StudyPoint, words: str) -> str:
    more_mib = mean(full.values["memory_mib"]) - mean(low.values["memory_mib"])
    return f"{low.label} against full: {words}; full takes {more_mib:.0f} MiB more"


METHODS = Study(
    name="methods",
    title="Time of an epoch and peak memory: full against LoRA of three ranks",
    run=_run,
    num_processes=lambda is_quick: (2 if is_quick else 4) * (2 if is_quick else 3),
    extra_s=lambda is_quick: 10 if is_quick else 90,
)
