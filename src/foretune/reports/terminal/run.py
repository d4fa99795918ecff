"""A run in a few lines: what was trained, what changed, how fast, what was expected."""

from collections.abc import Iterator
from pathlib import Path

from foretune.choices.running import Profile
from foretune.core.units import bytes_text, count_text, counted_text, duration_text, rate_text, rates_text, share_text
from foretune.core.values import Plan, RunRecord


def run_lines(path: Path, record: RunRecord | None, profile: Profile | None) -> Iterator[str]:
    """How it ended, and what was measured."""
    if record is None:
        yield f"{path}: no record; it still runs, or it was killed"
        return
    yield from measurements(record, profile)
    outcome = record.outcome
    if outcome.status == "finished":
        yield f"Finished {counted_text(outcome.steps_done, 'steps')} in {duration_text(record.wall_s)}: {path}"
    else:
        yield f"{outcome.status.capitalize()} after step {outcome.steps_done}: {outcome.reason}: {path}"


def weight_lines(record: RunRecord, changed: str | None, *, base_unchanged: bool | None) -> Iterator[str]:
    """What was trained, how much of it changed, and whether the base is what it was."""
    assert record.num_trainable_params is not None, "a run that was prepared knows its sizes"
    assert record.num_params is not None, "a run that was prepared knows its sizes"
    share = record.num_trainable_params / record.num_params
    sizes = f"{count_text(record.num_trainable_params)} of {count_text(record.num_params)} weights"
    yield f"Trained {sizes} ({share_text(share)})" + (f"; {changed}" if changed else "")
    if base_unchanged is not None:
        state = "is unchanged (checksum over all bits)" if base_unchanged else "HAS CHANGED: please report this"
        yield f"The base model {state}"


def measurements(record: RunRecord, profile: Profile | None) -> list[str]:
    """Losses, speed and memory; with a word where a profiler is in them."""
    measured = record.measured
    lines = []
    held_out = measured.held_out_losses
    if len(held_out) > 1:
        (first_step, first), (last_step, last) = held_out[0], held_out[-1]
        change = f": {(last - first) / first:+.1%}" if first else ""
        lines.append(f"Held-out loss {first:.4f} (step {first_step}) to {last:.4f} (step {last_step}){change}")
    if measured.samples_per_s is not None and measured.median_step_s is not None:
        memory = measured.peak_device_bytes or measured.peak_host_bytes
        where = "device" if measured.peak_device_bytes else "process"
        lines.append(
            f"Speed {rate_text(measured.samples_per_s, 'sample')}, median step {duration_text(measured.median_step_s)}"
            + (f", {where} peak {bytes_text(memory)}" if memory else "")
        )
    if record.plan is not None:
        lines += _planned_speed(record, record.plan)
        lines.append(_estimated(record, record.plan))
    if profile is not None and record.outcome.steps_done >= profile.at_step:
        last = min(profile.at_step + profile.steps - 1, record.outcome.steps_done)
        lines.append(
            f"Steps {profile.at_step} to {last} ran under the profiler, which slows them and takes memory of its own: "
            "speed and peak have it in them, the median step hardly"
        )
    return lines


def _planned_speed(record: RunRecord, plan: Plan) -> list[str]:
    """The planned speed beside the measured one, if both are known and the plan is for this run."""
    measured, time = record.measured.samples_per_s, plan.time
    if measured is None or time is None or plan.experiment != record.experiment_hash:
        return []
    rates = [time.samples_per_s * time.step_s / end_s for end_s in (time.step_s, time.high_s, time.low_s)]
    (likely, low, high, found), unit = rates_text([*rates, measured], "sample")
    off = f"the plan is {time.samples_per_s / measured - 1:+.1%} off"
    return [f"Speed: planned {likely} {unit} ({low} to {high}), measured {found}: {off}"]


def _estimated(record: RunRecord, plan: Plan) -> str:
    """What was estimated, beside what was measured: tensors on a device, the whole process on the host."""
    measured = record.measured.peak_device_bytes
    peak = plan.at_peak
    estimated, what, band = peak.allocated_bytes, "allocated", ""
    if measured is None:
        measured, estimated, what = record.measured.peak_host_bytes, peak.process_bytes, "process"
        band = f" ({bytes_text(peak.process_low_bytes)} to {bytes_text(peak.process_high_bytes)})"
    if not measured:
        return f"Memory estimated ({what}): {bytes_text(estimated)}{band}, not measured"
    # The measured peak is that of the whole run.
    # A local model is its folder, which must not be in a published text.
    notes = "; ".join(plan.notes).replace(plan.model, Path(plan.model).name)
    without = f"; it does not count: {notes}" if notes else ""
    return (
        f"Memory ({what}): estimated {bytes_text(estimated)}{band}, measured {bytes_text(measured)}: "
        f"the estimate is {estimated / measured - 1:+.1%} off{without}"
    )
