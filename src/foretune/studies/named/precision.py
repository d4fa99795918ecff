"""Mixed precision on and off."""

from typing import Any

from foretune.studies.named.base import (
    Study,
    StudyAxis,
    StudyRequest,
    StudyResult,
    StudyValue,
    as_fast,
    measure_in_turns,
    point,
    warnings_of,
)
from foretune.studies.named.small_models import experiment_on

_LABELS = {"fp32": "off (fp32)", "bf16": "on (bf16)"}


def _run(request: StudyRequest) -> StudyResult:
    folder, num_steps = request.model_folder("small flux"), 10 if request.is_quick else 30
    settings: dict[str, dict[str, Any]] = {
        label: experiment_on(folder, "precision", batch_size=2, precision=precision)
        for precision, label in _LABELS.items()
    }
    series = measure_in_turns(request, settings, num_steps=num_steps)
    points = tuple(
        point(
            label,
            one,
            {
                "step_ms": StudyValue.of(one.step_s, 1000),
                "memory_mib": StudyValue.memory_mib(one),
            },
        )
        for label, one in series.items()
    )
    return StudyResult(
        name="precision",
        title="Mixed precision on and off",
        setting="mixed precision",
        is_line=False,
        axes=(StudyAxis(key="step_ms", title="step time, ms"), StudyAxis(key="memory_mib", title="peak memory, MiB")),
        points=points,
        findings=(f"mixed precision against none: {as_fast(series[_LABELS['fp32']], series[_LABELS['bf16']])}",),
        measured_with={"model": str(folder), "num_steps": num_steps, "data": "synthetic"},
        warnings=warnings_of(series),
    )


PRECISION = Study(
    name="precision",
    title="Mixed precision on and off",
    run=_run,
    num_processes=lambda is_quick: 2 * (2 if is_quick else 3),
    extra_s=lambda is_quick: 10 if is_quick else 60,
)
