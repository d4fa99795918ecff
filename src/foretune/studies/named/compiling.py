"""Compiled blocks on and off, with the step from which on compiling has paid."""

from typing import Any

from foretune.stats.break_even import BreakEven, break_even, start_s
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


def _run(request: StudyRequest) -> StudyResult:
    folder, num_steps = request.model_folder("flux"), 12 if request.is_quick else 40
    settings: dict[str, dict[str, Any]] = {
        label: {**experiment_on(folder, "compile"), "levers": {"compile": choice}}
        for label, choice in (("off", "off"), ("regional", "regional"))
    }
    series = measure_in_turns(request, settings, num_steps=num_steps)
    raw = {label: [list(repeat.step_times_s) for repeat in one.repeats] for label, one in series.items()}
    found = break_even(raw["off"], raw["regional"])
    points = tuple(
        point(
            label,
            one,
            {
                "step_ms": StudyValue.of(one.step_s, 1000),
                "start_s": StudyValue(sum(map(start_s, raw[label])) / len(raw[label])),
            },
        )
        for label, one in series.items()
    )
    return StudyResult(
        name="compile",
        title="Compiled blocks on and off",
        setting="levers.compile",
        is_line=False,
        axes=(
            StudyAxis(key="step_ms", title="step time after the start, ms"),
            StudyAxis(key="start_s", title="start: beyond steady steps, s"),
        ),
        points=points,
        findings=_findings(found, as_fast(series["off"], series["regional"])),
        measured_with={
            "model": str(folder),
            "num_steps": num_steps,
            "data": "synthetic",
            "compiled code": "made anew in each repeat",
            "step_times_s": raw,
        },
        warnings=warnings_of(series),
    )


def _findings(found: BreakEven, words: str) -> tuple[str, ...]:
    speed = f"compiling takes {found.start_s:.1f} s at the start; a step after it: {words}"
    if found.step is None:
        return (speed, f"break-even: {found.why}")
    high = "no end" if found.high is None else f"{found.high:,}"
    return (speed, f"break-even: after {found.step:,} steps (interval: {found.low or 1:,} to {high})")


COMPILE = Study(
    name="compile",
    title="Compiled blocks on and off, with the break-even step",
    run=_run,
    num_processes=lambda is_quick: 2 * (2 if is_quick else 3),
    extra_s=lambda is_quick: 80 if is_quick else 150,
)
