"""Is the record what its log, its experiment and its environment say?"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.core.values import Plan, RunRecord
from foretune.record.environment import environment_hash
from foretune.record.log_lines import SLOWER, Event
from foretune.record.log_numbers import slack_s
from foretune.record.log_order import LoggedSession
from foretune.record.redaction import MARK
from foretune.stats.speed import median_step_s, samples_per_s

NOTHING_SAVED = "Nothing after it was saved"
"""Said by the reason of a run whose loss or gradient was no number; going on from its checkpoint leads there again."""
_ROUNDING_S = 1e-7
_SAME_SPEED = 1e-6
_CLOCKS_APART_S = 0.05
_OLD_NUM_WARMUP = 2
"""What releases left out of the speed that did not yet record how much."""


def identity_faults(
    record: RunRecord, run_id: str, experiment: Experiment, effective: Mapping[str, Any], environment: Any
) -> Iterator[str]:
    """Whose record it is."""
    wanted: dict[str, tuple[Any, Any]] = {
        "run_id": (record.run_id, run_id),
        "experiment_hash": (record.experiment_hash, _hash_of(experiment, record)),
        "environment_hash": (record.environment_hash, environment_hash(record.environment)),
        "environment": (record.environment, environment),
        "question_hash": (record.question_hash, effective.get("question_hash")),
        "num_trainable_params": (record.num_trainable_params, effective.get("num_trained_params")),
        "num_params": (record.num_params, effective.get("num_params")),
    }
    for name, (found, right) in wanted.items():
        if found != right:
            yield f"record.json: {name} is {_short(found)}, by the other files {_short(right)}"


def _hash_of(experiment: Experiment, record: RunRecord) -> str:
    """An experiment with a secret in it was hashed before that was taken out: its hash cannot be recomputed."""
    return record.experiment_hash if MARK in experiment.to_json() else experiment.whole_hash()


def outcome_faults(record: RunRecord, last: LoggedSession, num_steps: int | None) -> Iterator[str]:
    """How it ended."""
    outcome, ended = record.outcome, last.ended
    if ended is None:
        yield "record.json: there is a record, but the log has no end"
        return
    for name in ("status", "steps_done", "reason"):
        if getattr(outcome, name) != ended[name]:
            yield f"record.json: {name} is {_short(getattr(outcome, name))}, in the log {_short(ended[name])}"
    saved = [event["step"] for event in last.of("saved")]
    if outcome.status == "finished" and num_steps is not None and outcome.steps_done != num_steps:
        yield f"record.json: finished after {outcome.steps_done} steps, but {num_steps} were to be done"
    if outcome.status == "interrupted" and outcome.steps_done not in (last.first_step, *saved):
        yield f"record.json: interrupted after step {outcome.steps_done}, at which nothing was saved"
    if (outcome.status == "finished") != (outcome.reason is None):
        yield f"record.json: {outcome.status} with the reason {_short(outcome.reason)}"
    if outcome.status == "failed" and not last.of("crashed") and NOTHING_SAVED not in (outcome.reason or ""):
        yield "record.json: failed, but the log has no crash"
    passed_s = ended["time_s"] - last.started["time_s"]
    worked_s = max((e["time_s"] for e in last.events if e["kind"] != "peak"), default=0.0) - last.started["time_s"]
    if not worked_s - slack_s(passed_s) <= record.wall_s <= passed_s + slack_s(passed_s):
        yield f"record.json: wall_s is {record.wall_s:.3f}, but by the log {passed_s:.3f} s passed"
    for event in last.of("validation failed"):
        if event["error"] not in record.warnings:
            yield f"record.json: a validation failed (line {event['line']}), but no warning says so"
    for event in (*last.of("alarm"), *last.of(SLOWER)):
        if event["text"] not in record.warnings:
            yield f"record.json: there is an alarm (line {event['line']}), but no warning says so"


def plan_faults(plan: Plan | None, session: LoggedSession) -> Iterator[str]:
    """Whether what is called slower than planned is slower than what was planned."""
    for event in session.of(SLOWER):
        line, measured, planned = event["line"], event["measured_samples_per_s"], event["planned_samples_per_s"]
        if plan is None or plan.time is None:
            yield f"line {line}: slower than planned, but plan.json has no speed"
        elif not math.isclose(planned, plan.time.samples_per_s, rel_tol=_SAME_SPEED):
            yield f"line {line}: {planned} samples/s were planned, in plan.json {plan.time.samples_per_s}"
        elif measured >= planned:
            yield f"line {line}: slower than planned, but {measured} samples/s are not less than {planned}"


def reported_events(sessions: list[LoggedSession]) -> tuple[list[Event], dict[int, float]]:
    """Steps and held-out losses of the whole run: what was repeated after a resume counts once, the last time."""
    steps: dict[int, Event] = {}
    held_out: dict[int, float] = {}
    for session in sessions:
        first = session.first_step
        steps = {step: event for step, event in steps.items() if step < first}
        held_out = {step: loss for step, loss in held_out.items() if step <= first}
        steps |= {event["step"]: event for event in session.of("step")}
        held_out |= {
            event["step"]: float(event["held_out_loss"])
            for event in session.of("validated")
            if event["held_out_loss"] is not None
        }
    return [steps[step] for step in sorted(steps)], held_out


def measured_faults(record: RunRecord, sessions: list[LoggedSession], experiment: Experiment) -> Iterator[str]:
    """Every summary, recomputed from the raw numbers."""
    measured, (steps, held_out) = record.measured, reported_events(sessions)
    times_s = [event["step_s"] for event in steps if experiment.shows_speed(event["step"])]
    if measured.num_step_times == len(steps):
        # Records of earlier releases counted profiled steps, too.
        times_s = [event["step_s"] for event in steps]
    num_warmup = _OLD_NUM_WARMUP if measured.num_warmup_steps is None else measured.num_warmup_steps
    median_s = median_step_s(times_s, num_warmup=num_warmup)
    per_step = experiment.samples_per_step()
    speeds = [samples_per_s(times_s, per_step, num_warmup=num_warmup), per_step / median_s if median_s else None]
    computed: dict[str, list[Any]] = {
        "num_step_times": [len(times_s)],
        "median_step_s": [median_s],
        "samples_per_s": speeds,
        "first_loss": [steps[0]["loss"] if steps else None],
        "last_loss": [steps[-1]["loss"] if steps else None],
    }
    for name, allowed in computed.items():
        found = getattr(measured, name)
        if not any(_is_close(found, right) for right in allowed):
            yield f"record.json: {name} is {_short(found)}, by the log {_short(allowed[0])}"
    if not 0 <= num_warmup <= max(len(times_s), _OLD_NUM_WARMUP):
        yield f"record.json: {num_warmup} of {len(times_s)} steps cannot be warm-up"
    if not _are_close(dict(measured.held_out_losses), held_out):
        yield "record.json: the held-out losses are not those of the log"
    yield from _phase_faults(record, sessions[-1])
    yield from _memory_faults(record, sessions[-1])
    yield from _derived_faults(record, sessions[-1])


def _phase_faults(record: RunRecord, last: LoggedSession) -> Iterator[str]:
    """Of the last session, like its wall time: what the events tell, and what came after the last of them."""
    phases_s = record.measured.phases_s
    if phases_s is None or last.ended is None:
        return
    timed = [*last.of("step"), *last.of("paused")]
    logged_s: dict[str, float] = {}
    for event in timed:
        for name, seconds in event.get("phases_s", {}).items():
            logged_s[name] = logged_s.get(name, 0.0) + seconds
    rounding_s = _ROUNDING_S * (len(timed) + 1)
    for name in logged_s.keys() | phases_s.keys():
        if phases_s.get(name, 0.0) < logged_s.get(name, 0.0) - rounding_s:
            yield f"record.json: phases_s.{name} is {phases_s.get(name, 0.0):.6f}, by the log {logged_s[name]:.6f}"
    rest_s = last.ended["time_s"] - max((event["time_s"] for event in timed), default=last.started["time_s"])
    # Stopping a profiler takes a second or so, and may come before the step that it follows is logged.
    rest_s += sum(event.get("stop_s", 0.0) for event in last.of("profiled"))
    more_s = sum(phases_s.values()) - sum(logged_s.values())
    if more_s > rest_s + _CLOCKS_APART_S + len(phases_s) * rounding_s:
        yield f"record.json: the phases add up to {more_s:.6f} s more than the log has"


def _memory_faults(record: RunRecord, last: LoggedSession) -> Iterator[str]:
    measured = record.measured
    for place, peak in (("host", measured.peak_host_bytes), ("device", measured.peak_device_bytes)):
        seen = [event["memory_bytes"][place] for event in last.of("step") if place in event.get("memory_bytes", {})]
        # The system adds the pages of a process up in several counters, some of them late.
        if peak is not None and seen and peak < 0.99 * max(seen):
            yield f"record.json: the peak of the {place} is {peak}, but {max(seen)} bytes were held"
        if peak is not None and peak <= 0:
            yield f"record.json: the peak of the {place} cannot be {peak}"
    if None not in (measured.peak_reserved_bytes, measured.peak_device_bytes):
        assert measured.peak_reserved_bytes is not None
        assert measured.peak_device_bytes is not None
        if measured.peak_reserved_bytes < measured.peak_device_bytes:
            yield "record.json: less was reserved on the device than given out"


def _derived_faults(record: RunRecord, last: LoggedSession) -> Iterator[str]:
    measured, peaks = record.measured, last.of("peak")
    if measured.utilisation is not None and measured.median_step_s and measured.model_flops_per_step and peaks:
        right = measured.model_flops_per_step / measured.median_step_s / peaks[-1]["flops_per_s"]
        if not math.isclose(measured.utilisation, right, rel_tol=1e-6):
            yield f"record.json: utilisation is {measured.utilisation:.4f}, by its parts {right:.4f}"
    read_s = [event["read_s"] for event in last.of("telemetry")]
    if measured.energy_j is not None:
        length_s = read_s[-1] - read_s[0] if read_s else 0.0
        right_j = (measured.mean_power_w or 0.0) * length_s
        if not math.isclose(
            measured.energy_j, right_j, rel_tol=0.05, abs_tol=slack_s(0) * (measured.mean_power_w or 0.0)
        ):
            yield f"record.json: energy_j is {measured.energy_j:.1f}, by power and time {right_j:.1f}"


def _are_close(found: Mapping[int, float], right: Mapping[int, float]) -> bool:
    return found.keys() == right.keys() and all(_is_close(found[step], right[step]) for step in right)


def _is_close(found: Any, right: Any) -> bool:
    if found is None or right is None:
        return found is right
    return math.isclose(found, right, rel_tol=1e-9) or (math.isnan(found) and math.isnan(right))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - one line of a message
