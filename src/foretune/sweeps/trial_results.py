"""What came of a trial: its outcome and the numbers of its run, from its folder alone."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from foretune.core.values import Plan, WrongFormat
from foretune.executors.outcome import TaskOutcome
from foretune.executors.state import read_state
from foretune.record.run_directory import RunDirectory
from foretune.sweeps.trial_facts import read_facts
from foretune.sweeps.trial_request import newest_run


@dataclass(frozen=True, kw_only=True)
class TrialNumbers:
    """What was measured. None is "not measured", never zero."""

    num_devices: int | None = None
    num_steps: int | None = None
    """Optimizer steps that were made."""
    step_s: float | None = None
    """Median step after warm-up."""
    samples_per_s: float | None = None
    """Of all devices together, after warm-up."""
    epoch_s: float | None = None
    """For as many samples as the sweep file calls an epoch."""
    planned_peak_bytes: int | None = None
    """Forecast for the process: memory of the device, or of the host where that computes."""
    measured_peak_bytes: int | None = None
    """Of what the forecast counts: tensors of the device, or the whole process on a CPU."""
    reserved_peak_bytes: int | None = None
    """The most that the allocator held of the device."""
    first_loss: float | None = None
    last_loss: float | None = None
    held_out_loss: float | None = None
    """After the last step."""
    compile_s: float | None = None
    """What the first steps took beyond steady ones."""
    prepare_s: float | None = None
    """Loading, reading images, encoding."""
    train_s: float | None = None
    """From the first step to the end."""
    energy_j: float | None = None
    environment: str | None = None
    """Hash of the environment it ran in."""

    @property
    def samples_per_s_per_device(self) -> float | None:
        return None if self.samples_per_s is None else self.samples_per_s / (self.num_devices or 1)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial that has ended."""

    name: str
    content: str
    """Hash of what was run and where."""
    labels: Mapping[str, str]
    """The value of each axis, as text."""
    changes: Mapping[str, Any]
    """What the combination changes in the experiment, by key."""
    seed: int
    outcome: TaskOutcome
    run: Path | None
    """Its run directory, if it came that far."""
    numbers: TrialNumbers
    usd: float | None = None
    """Price of its devices for its time."""
    is_reused: bool = False
    """Whether it had ended before this start of the sweep."""

    @property
    def is_done(self) -> bool:
        return self.outcome.kind == "done"


def read_result(folder: Path, *, epoch_samples: int | None = None) -> TrialResult | None:
    """The result of a trial's folder; None while it has not ended."""
    outcome = read_state(folder).outcome
    if outcome is None:
        return None
    facts = read_facts(folder)
    run = newest_run(folder)
    numbers = TrialNumbers(num_devices=facts.num_devices, planned_peak_bytes=facts.planned_peak_bytes)
    if run is not None:
        numbers = _numbers(run, numbers, epoch_samples)
    return TrialResult(
        name=folder.name,
        content=facts.content,
        labels=facts.labels,
        changes=facts.changes,
        seed=facts.seed,
        # The log stays in the folder.
        outcome=TaskOutcome(**{**outcome.to_mapping(), "log_lines": outcome.log_lines[-1:]}),
        run=None if run is None else run.path,
        numbers=numbers,
    )


def planned_peak_bytes(plan: Plan | None) -> int | None:
    """What the forecast says of the number that will be measured: tensors on a device, the process on a CPU."""
    if plan is None:
        return None
    return plan.at_peak.process_bytes if plan.host is None else plan.at_peak.allocated_bytes


def _numbers(run: RunDirectory, known: TrialNumbers, epoch_samples: int | None) -> TrialNumbers:
    try:
        record = run.read_record()
        experiment = run.read_experiment()[1]
    except WrongFormat:
        return known
    found: dict[str, Any] = {field.name: getattr(known, field.name) for field in fields(known)}
    found["num_devices"] = experiment.parallel.devices
    if record is None:
        return TrialNumbers(**found)
    measured = record.measured
    is_on_device = measured.peak_device_bytes is not None
    losses = measured.held_out_losses
    speed = measured.samples_per_s
    return TrialNumbers(
        **{
            **found,
            "num_steps": record.outcome.steps_done or measured.num_step_times or None,
            "step_s": measured.median_step_s,
            "samples_per_s": speed,
            "epoch_s": None if epoch_samples is None or not speed else epoch_samples / speed,
            "measured_peak_bytes": measured.peak_device_bytes if is_on_device else measured.peak_host_bytes,
            "reserved_peak_bytes": measured.peak_reserved_bytes,
            "first_loss": measured.first_loss,
            "last_loss": measured.last_loss,
            "held_out_loss": losses[-1][1] if losses else None,
            "compile_s": measured.compile_s,
            "prepare_s": measured.prepare_s,
            "train_s": record.wall_s,
            "energy_j": measured.energy_j,
            "environment": record.environment_hash,
        }
    )
