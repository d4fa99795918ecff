"""`train` and `resume`: a run from an experiment to its record."""

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from foretune.choices.experiment import Experiment
from foretune.config.reading import Asked
from foretune.core.disk_faults import disk_fault
from foretune.core.errors import UserError
from foretune.core.interrupts import StopRequest, stop_on_signals, told_if_interrupted
from foretune.core.observer import Observer, Observers
from foretune.core.values import Outcome, Plan, RunRecord
from foretune.core.values.run_record import Measured
from foretune.data.sources.files import NoFolder
from foretune.models.locating import locate
from foretune.record.environment import environment_fingerprint, environment_hash
from foretune.record.events import EventLog, read_events
from foretune.record.locking import locked
from foretune.record.log_summary import NOTHING_SAVED
from foretune.record.redaction import MARK
from foretune.record.run_directory import RunDirectory
from foretune.stats.speed import median_step_s, samples_per_s
from foretune.stats.steady import find_steady
from foretune.step.weights import checksums, num_changed
from foretune.training.checkpoints import CheckpointStore
from foretune.training.devices import peak_device_bytes, peak_host_bytes, peak_reserved_bytes, use_threads
from foretune.training.loop import Loop, NotFinite, Tally
from foretune.training.preparing import Prepared, prepare
from foretune.training.profiling.instrument import profilers
from foretune.training.recording import record_of
from foretune.training.sampling import SampleRequest
from foretune.training.state import COUNTED, check, components, restore
from foretune.training.telemetry.energy_sum import EnergySum
from foretune.training.trackers import open_trackers, require_trackers
from foretune.training.validating import Validator
from foretune.training.watching import alarm_for, sampler_for


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run leaves behind."""

    run: RunDirectory
    record: RunRecord
    num_changed_tensors: int
    num_trained_tensors: int
    base_unchanged: bool | None
    """None where the base itself is trained."""


def train(
    asked: Asked,
    runs: Path,
    observer: Observer,
    plan: Plan | None = None,
    *,
    handles_signals: bool = True,
    folder_name: str | None = None,
    about: Mapping[str, Any] | None = None,
) -> Trained:
    """Starts a new run. Its plan, where there is one, is stored before the first step.

    `handles_signals`: a signal to stop ends the run after its step, with a checkpoint. The run directory is made in a
    folder of the experiment's name, or of another one. `about` is what else the
    directory should say of the run, such as the study that it is a part of.
    """
    folder_name = folder_name or asked.experiment.name
    begun_s = time.perf_counter()
    require_trackers(asked.experiment.track)
    folder, revision = locate(asked.model)
    for warning in asked.warnings:
        observer.warning(warning)
    try:
        with told_if_interrupted("No step was made. What was encoded is kept: the same command continues with it."):
            prepared = prepare(asked.experiment, folder, observer)
    except UserError:
        raise  # said before anything was made
    except Exception as error:
        run = RunDirectory.create(runs, folder_name)
        effective = {"model_folder": str(folder.resolve()), **(about or {})}
        run.write_experiment(asked.as_asked, asked.experiment, effective)
        run.write_plan(plan)
        raise _preparation_failed(run, asked.experiment, error) from error
    run = RunDirectory.create(runs, folder_name)
    effective = {**prepared.effective, "model_revision": revision, **(about or {})}
    run.write_experiment(asked.as_asked, asked.experiment, effective)
    run.write_plan(plan)
    observer.message(f"Run directory: {run.path}")
    with locked(run.lock), told_if_interrupted(_go_on(run)):
        return _run(run, prepared, observer, list(asked.warnings), begun_s, handles_signals=handles_signals)


def resume(run: RunDirectory, observer: Observer, *, handles_signals: bool = True) -> Trained:
    """Goes on with a run from its newest whole checkpoint, as if it had never stopped."""
    run.require_own_files()
    _, experiment, effective = run.read_experiment()
    record = run.read_record()
    if record is not None and record.outcome.status == "finished":
        raise UserError(
            f"{run.path} has finished its {record.outcome.steps_done} steps. "
            f"Next: foretune export {run.path}, or foretune train with more train.steps"
        )
    if "data_fingerprint" not in effective:
        raise UserError(
            f"{run.path} failed before its first step, so there is nothing to resume. Fix what its record.json "
            "names and start anew: foretune train experiment.yaml"
        )
    folder = Path(effective["model_folder"])
    if not folder.is_dir():
        raise UserError(f"The base model of {run.path} is gone: {folder} does not exist. Put it back where it was.")
    # Sums are split over threads: another number of them gives other last bits.
    use_threads(effective.get("num_threads"))
    with locked(run.lock), told_if_interrupted(_go_on(run)):
        begun_s = time.perf_counter()
        try:
            prepared = prepare(experiment, folder, observer)
        except NoFolder as error:
            is_relative = error.path != str(error.looked_for)
            fix = "Go to the directory that the run was started in" if is_relative else "Put it back"
            raise UserError(
                f"{run.path} reads images from {error.path}, and there is no {error.looked_for}. "
                f"{fix}, or set the path of `data` in {run.path / 'experiment.yaml'}."
            ) from error
        _refuse_another_run(run, effective, prepared)
        _refuse_without_checkpoints(run, observer)
        run.remove_record()
        return _run(run, prepared, observer, [], begun_s, handles_signals=handles_signals)


def _go_on(run: RunDirectory) -> str:
    return f"Its last checkpoint is whole. Continue with: foretune resume {run.path}"


def _refuse_another_run(run: RunDirectory, before: dict[str, object], prepared: Prepared) -> None:
    """Refused where weights would come out that the run as it was started would not give; paths may change."""
    counted = {
        "data_fingerprint": "training data",
        "base_checksum": "base model",
        "read_adapters": "adapter that is read",
        "question_hash": "experiment",
    }
    if MARK in prepared.experiment.to_json():
        # It was hashed before a secret was taken out of it, and cannot be hashed again.
        del counted["question_hash"]
    for key, what in counted.items():
        if before.get(key) != prepared.effective.get(key):
            raise UserError(
                f"The {what} of {run.path} changed since it started, so it cannot continue as the same run. "
                "Restore what it was, or start anew: foretune train experiment.yaml"
            )


def _refuse_without_checkpoints(run: RunDirectory, observer: Observer) -> None:
    """Nothing that was trained is thrown away unasked; a run that never came to a save begins again, and says so."""
    if CheckpointStore(run.checkpoints, keep=1).steps():
        return
    saved = [event["step"] for event in read_events(run.events) if event["kind"] == "saved"]
    if saved:
        raise UserError(
            f"The checkpoints of {run.path} are gone: its log has a save after step {saved[-1]}, and "
            f"{run.checkpoints} is empty. Put them back, or start anew: foretune train experiment.yaml"
        )
    observer.message("It was stopped before its first checkpoint: starting again at the first step.")


class PreparationFailed(UserError):
    """A crash before the first step, with its record."""

    exit_code = 1


def _preparation_failed(run: RunDirectory, experiment: Experiment, error: Exception) -> PreparationFailed:
    environment = environment_fingerprint()
    status = status_of(error)
    reason = f"{type(error).__name__} while preparing: {str(error).strip()[:500]}"
    run.write_environment(environment)
    run.write_record(
        RunRecord(
            run_id=run.run_id,
            question_hash=None,
            experiment_hash=experiment.whole_hash(),
            outcome=Outcome(status=status, steps_done=0, reason=reason),
            environment=environment,
            environment_hash=environment_hash(environment),
            plan=run.read_plan(),
            measured=Measured(peak_host_bytes=peak_host_bytes()),
            num_trainable_params=None,
            num_params=None,
            wall_s=0.0,
        )
    )
    return PreparationFailed(f"{status.capitalize()} before the first step: {reason}. Recorded in {run.path}")


def status_of(error: Exception) -> Literal["out of memory", "failed"]:
    """Running out of memory is told apart: it has a remedy of its own."""
    # On the host torch has no error of its own for it, only these words.
    no_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)
    return "out of memory" if no_memory else "failed"


def _run(
    run: RunDirectory,
    prepared: Prepared,
    observer: Observer,
    warnings: list[str],
    begun_s: float,
    *,
    handles_signals: bool,
) -> Trained:
    experiment = prepared.experiment
    environment = environment_fingerprint()
    run.write_environment(environment)
    store = CheckpointStore(run.checkpoints, experiment.save.keep)
    observer = Observers(observer, *open_trackers(experiment.track, run.path, observer))
    initial, base = checksums(prepared.step.trained), checksums(prepared.method.frozen())
    first_step, counted_s = _restore(prepared, store, observer, warnings)
    events = EventLog(run.events)
    events.append("started", first_step=first_step, environment=environment)
    with stop_on_signals() if handles_signals else nullcontext(StopRequest()) as stop:
        loop = Loop(prepared, store, build_validator(run, prepared), events, observer, stop)
        loop.tally.warnings += warnings
        loop.length.counted_s = counted_s
        sampler = sampler_for(prepared.device, events)
        loop.instruments = [*profilers(run, loop), sampler]
        loop.observer = Observers(observer, alarm_for(sampler, events, observer, loop.tally.warnings))
        if first_step:
            _recall(run, loop.tally, first_step)
        started_s = time.perf_counter()
        outcome = _outcome(lambda: loop.run(first_step), loop, events, stop)
        wall_s = time.perf_counter() - started_s
        sampler.close()
    record = record_of(
        run,
        prepared,
        outcome=outcome,
        environment=environment,
        measured=_measured(loop, prepared.device, sampler.energy, prepare_s=started_s - begun_s),
        wall_s=wall_s,
        warnings=loop.tally.warnings,
    )
    events.append("ended", status=outcome.status, steps_done=outcome.steps_done, reason=outcome.reason)
    events.close()
    observer.ended()
    run.write_record(record)
    return Trained(
        run=run,
        record=record,
        num_changed_tensors=num_changed(initial, checksums(prepared.step.trained)),
        num_trained_tensors=len(initial),
        base_unchanged=checksums(prepared.method.frozen()) == base if base else None,
    )


def _restore(prepared: Prepared, store: CheckpointStore, observer: Observer, warnings: list[str]) -> tuple[int, float]:
    """Puts the newest whole checkpoint in place; returns the step to go on from, and what the clock had counted."""
    has_clock = prepared.experiment.train.seconds is not None
    found = store.read_newest(
        components(prepared.step), lambda checkpoint: check(prepared.step, checkpoint, has_clock=has_clock)
    )
    if found is None:
        return 0, 0.0
    checkpoint, faults = found
    for fault in faults:
        text = f"A checkpoint was passed over because it is damaged: {fault}"
        warnings.append(text)
        observer.warning(text)
    restore(prepared.step, checkpoint)
    observer.message(f"Resuming after step {checkpoint.step}.")
    return checkpoint.step, float(checkpoint.scalars.get(COUNTED, 0.0))


def _recall(run: RunDirectory, tally: Tally, first_step: int) -> None:
    """The numbers of the steps before, so that the record of a resumed run is that of the whole run."""
    steps: dict[int, dict[str, float]] = {}
    held_out: dict[int, float] = {}
    for event in read_events(run.events):
        if event["kind"] == "step" and event["step"] < first_step:
            steps[event["step"]] = event
        elif event["kind"] == "validated" and event["step"] <= first_step:
            tally.validated_steps.add(event["step"])
            if event["held_out_loss"] is not None:
                held_out[event["step"]] = event["held_out_loss"]
    ordered = [steps[step] for step in sorted(steps)]
    tally.step_times_s += [event["step_s"] for event in ordered]
    if ordered:
        tally.first_loss, tally.last_loss = ordered[0]["loss"], ordered[-1]["loss"]
    tally.held_out_losses += sorted(held_out.items())


def _outcome(run_loop: Callable[[], tuple[int, str]], loop: Loop, events: EventLog, stop: StopRequest) -> Outcome:
    """How the loop ended. What went wrong is an outcome with its reason, so that the record is always written."""
    try:
        steps_done, end = run_loop()
        if end == "interrupted":
            return Outcome(status="interrupted", steps_done=steps_done, reason=f"stopped by {stop.reason} after saving")
        return Outcome(status="finished", steps_done=steps_done)
    except NotFinite as error:
        status: Literal["out of memory", "failed"] = "failed"
        reason = f"{error}. {NOTHING_SAVED}. Try a lower optimizer.lr, or train.precision=bf16"
    except Exception as error:  # noqa: BLE001 - the record of a crash is a record too
        fault = disk_fault(error, unnamed=f"A file in {loop.store.directory.parent}")
        status, reason = status_of(error), fault or f"{type(error).__name__}: {error}"
        events.append("crashed", traceback=traceback.format_exc())
    saved = loop.store.steps()
    return Outcome(status=status, steps_done=saved[-1] if saved else 0, reason=reason)


def build_validator(run: RunDirectory, prepared: Prepared) -> Validator:
    choice = prepared.experiment.validation
    return Validator(
        step=prepared.step,
        family=prepared.family,
        folder=prepared.folder,
        device=prepared.device,
        held_out=prepared.held_out,
        request=SampleRequest(
            prompts=choice.prompts,
            seed=choice.seed,
            num_inference_steps=choice.num_inference_steps,
            size_px=prepared.resolution_px,
            num_text_tokens=prepared.num_text_tokens,
            guidance_scale=choice.guidance_scale,
        ),
        encoded_prompts=prepared.encoded_prompts,
        unconditional=prepared.unconditional,
        samples_dir=run.samples,
        encoders=prepared.encoders,
        vae_tiling=prepared.experiment.levers.vae_tiling,
    )


def _measured(loop: Loop, device: torch.device, energy: EnergySum, prepare_s: float) -> Measured:
    tally, experiment = loop.tally, loop.prepared.experiment
    times_s = tally.step_times_s
    num_warmup = find_steady(times_s).num_warmup
    return Measured(
        num_step_times=len(times_s),
        median_step_s=median_step_s(times_s, num_warmup=num_warmup),
        samples_per_s=samples_per_s(times_s, experiment.samples_per_step(), num_warmup=num_warmup),
        peak_device_bytes=peak_device_bytes(device),
        peak_host_bytes=peak_host_bytes(),
        first_loss=tally.first_loss,
        last_loss=tally.last_loss,
        held_out_losses=tuple(tally.held_out_losses),
        phases_s=tally.phases_s or None,
        num_warmup_steps=num_warmup,
        peak_reserved_bytes=peak_reserved_bytes(device),
        energy_j=energy.energy_j,
        mean_power_w=energy.mean_power_w,
        counted_s=None if experiment.train.seconds is None else loop.length.counted_s,
        prepare_s=prepare_s,
    )
