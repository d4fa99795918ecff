"""`train` and `resume`: a run from an experiment to its record."""

import dataclasses
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from foretune.accelerator.memory import reset_peaks
from foretune.choices.experiment import Experiment
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.core.interrupts import SAME_COMMAND, StopRequest, explained_if_interrupted, stop_on_signals
from foretune.core.observer import Observer, Observers
from foretune.core.values import Outcome, Plan, RunRecord
from foretune.core.values.run_record import Measured
from foretune.data.sources.files import NoFolder
from foretune.models.locating import locate
from foretune.record.environment import environment_fingerprint, environment_hash
from foretune.record.events import read_events
from foretune.record.locking import locked
from foretune.record.redaction import MARK
from foretune.record.run_directory import RunDirectory
from foretune.step.weights import checksums, num_changed
from foretune.training.alike import check_alike, parallel_text
from foretune.training.checkpoints import CheckpointStore
from foretune.training.devices import choose_device, peak_host_bytes, use_threads
from foretune.training.loop import Tally
from foretune.training.preparing import Prepared, prepare
from foretune.training.ranks import ALONE, Ranks
from foretune.training.session import Session, status_of
from foretune.training.state import COUNTED, check, components, place, restore
from foretune.training.trackers import open_trackers, require_trackers


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run leaves behind."""

    run: RunDirectory
    record: RunRecord
    num_changed_tensors: int | None
    """None where a process was lost: its part of the weights is gone."""
    num_trained_tensors: int
    base_unchanged: bool | None
    """None where the base itself is trained, or a process was lost."""


def train(
    asked: Asked,
    runs: Path,
    observer: Observer,
    plan: Plan | None = None,
    *,
    handles_signals: bool = True,
    folder_name: str | None = None,
    about: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> Trained:
    """Starts a new run. Its plan, where there is one, is stored before the first step.

    With several processes each of them calls it; the first one owns the run directory, and the observer should be its.

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
        with explained_if_interrupted(f"No step was made. {SAME_COMMAND}"):
            prepared = _prepared(asked.experiment, folder, observer, ranks)
            before = weight_sums(prepared)
    except UserError:
        raise  # said before anything was made
    except Exception as error:
        if not ranks.is_first:
            raise
        run = RunDirectory.create(runs, folder_name)
        effective = {"model_folder": str(folder.resolve()), **(about or {})}
        run.write_experiment(asked.as_asked, asked.experiment, effective)
        run.write_plan(plan)
        raise _preparation_failed(run, asked.experiment, error) from error
    run = new_run(runs, folder_name, ranks)
    if ranks.is_first:
        effective = {**prepared.effective, "model_revision": revision, **(about or {})}
        run.write_experiment(asked.as_asked, asked.experiment, effective)
        run.write_plan(plan)
    observer.began(run.path)
    observer.message(f"Run directory: {run.path}")
    with locked(run.lock) if ranks.is_first else nullcontext(), explained_if_interrupted(_go_on(run)):
        return _run(run, prepared, before, observer, list(asked.warnings), begun_s, handles_signals=handles_signals)


def _prepared(experiment: Experiment, folder: Path, observer: Observer, ranks: Ranks) -> Prepared:
    """A run that can start in all of its processes."""
    # An earlier run of this process has its own record.
    reset_peaks(choose_device(experiment.parallel.device, ranks.local_rank))
    prepared = prepare(experiment, folder, observer, ranks)
    if ranks.size > 1:
        check_alike(prepared)
        observer.message(parallel_text(prepared))
    return prepared


def new_run(runs: Path, folder_name: str, ranks: Ranks) -> RunDirectory:
    """The directory that the first process makes; the others get its name."""
    path = str(RunDirectory.create(runs, folder_name).path) if ranks.is_first else None
    return RunDirectory(Path(ranks.from_first(path)))


def resume(
    run: RunDirectory,
    observer: Observer,
    *,
    changed: Asked | None = None,
    handles_signals: bool = True,
    ranks: Ranks = ALONE,
) -> Trained:
    """Goes on with a run from its newest whole checkpoint, as if it had never stopped.

    `changed`: its experiment with another way to compute the same thing, which the run directory keeps from now on.
    """
    run.require_own_files()
    _, experiment, effective = run.read_experiment()
    if changed is not None:
        experiment = changed.experiment
    record = run.read_record()
    if record is not None and record.outcome.status == "finished":
        raise UserError(
            f"{run.path} has finished its {record.outcome.steps_done} steps. "
            f"Next: foretune export {run.path}, or foretune train with more train.steps"
        )
    if "data_fingerprint" not in effective:
        raise UserError(
            f"{run.path} failed before its first step, so there is nothing to resume. Fix what its record.json "
            "names and start over: foretune train experiment.yaml"
        )
    folder = Path(effective["model_folder"])
    if not folder.is_dir():
        raise UserError(f"The base model of {run.path} is gone: {folder} does not exist. Put it back where it was.")
    # Sums are split over threads: another number of them gives other last bits.
    use_threads(effective.get("num_threads"))
    observer.began(run.path)
    with locked(run.lock) if ranks.is_first else nullcontext(), explained_if_interrupted(_go_on(run)):
        begun_s = time.perf_counter()
        try:
            prepared = _prepared(experiment, folder, observer, ranks)
        except NoFolder as error:
            is_relative = error.path != str(error.looked_for)
            fix = "Go to the directory that the run was started in" if is_relative else "Put it back"
            raise UserError(
                f"{run.path} reads its data from {error.path}, and there is no {error.looked_for}. "
                f"{fix}, or set the path of `data` in {run.path / 'experiment.yaml'}."
            ) from error
        _refuse_another_run(run, effective, prepared)
        _refuse_without_checkpoints(run, observer)
        if ranks.is_first:
            run.remove_record()
            if changed is not None:
                run.write_experiment(changed.as_asked, experiment, {**effective, **_of_experiment(prepared)})
        before = weight_sums(prepared)
        return _run(run, prepared, before, observer, [], begun_s, handles_signals=handles_signals)


def _of_experiment(prepared: Prepared) -> dict[str, Any]:
    """What follows from the experiment alone; the rest was found when the run began, such as its data."""
    return {key: prepared.effective[key] for key in ("experiment_hash", "samples_per_step")}


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
                "Restore what it was, or start over: foretune train experiment.yaml"
            )


def _refuse_without_checkpoints(run: RunDirectory, observer: Observer) -> None:
    """Nothing that was trained is thrown away unasked; a run that never came to a save begins again, and says so."""
    if CheckpointStore(run.checkpoints, keep=1).steps():
        return
    saved = [event["step"] for event in read_events(run.events) if event["kind"] == "saved"]
    if saved:
        raise UserError(
            f"The checkpoints of {run.path} are gone: its log has a save after step {saved[-1]}, and "
            f"{run.checkpoints} is empty. Put them back, or start over: foretune train experiment.yaml"
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


def _run(
    run: RunDirectory,
    prepared: Prepared,
    before: "_WeightSums",
    observer: Observer,
    warnings: list[str],
    begun_s: float,
    *,
    handles_signals: bool,
) -> Trained:
    experiment = prepared.experiment
    is_first = prepared.ranks.is_first
    if is_first:
        observer = Observers(observer, *open_trackers(experiment.track, run.path, observer))
    with stop_on_signals() if handles_signals else nullcontext(StopRequest()) as stop:
        session = Session(run, prepared, observer, stop=stop, warnings=warnings)
        first_step = _restore(session, observer)
        outcome = session.run_loop(first_step)
    record = session.finish(outcome, session.measured(outcome, session.started_s - begun_s))
    observer.ended()
    if is_first:
        run.write_record(record)
    # Sums over shards need every process, and after a failure one may be gone.
    can_sum = prepared.ranks.size == 1 or outcome.status in ("finished", "interrupted")
    return Trained(
        run=run,
        record=record,
        num_changed_tensors=num_changed(before.trained, checksums(prepared.step.trained)) if can_sum else None,
        num_trained_tensors=len(before.trained),
        base_unchanged=checksums(prepared.method.frozen()) == before.base if before.base and can_sum else None,
    )


@dataclasses.dataclass(frozen=True)
class _WeightSums:
    """Checksums of the weights before the first step, by name."""

    trained: dict[str, int]
    base: dict[str, int]
    """Empty where the base is what is trained."""


def weight_sums(prepared: Prepared) -> _WeightSums:
    """Takes memory on the device, so a run may fail here: it counts as its preparation, which is recorded."""
    method = prepared.method
    return _WeightSums(checksums(prepared.step.trained), {} if method.trains_base else checksums(method.frozen()))


def _restore(session: Session, observer: Observer) -> int:
    """Puts the newest whole checkpoint in place; returns the step to go on from."""
    step, loop = session.prepared.step, session.loop
    has_clock = session.prepared.experiment.train.seconds is not None
    found = loop.saver.store.read_newest(
        components(step), lambda checkpoint: check(step, checkpoint, has_clock=has_clock), place(step)
    )
    if found is None:
        return 0
    checkpoint, faults = found
    for fault in faults:
        text = f"A checkpoint was passed over because it is damaged: {fault}"
        loop.tally.warnings.append(text)
        observer.warning(text)
    restore(step, checkpoint)
    observer.message(f"Resuming after step {checkpoint.step}.")
    loop.length.counted_s = float(checkpoint.scalars.get(COUNTED, 0.0))
    if checkpoint.step:
        _recall(session.run, loop.tally, checkpoint.step)
    return checkpoint.step


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
    tally.step_times_s |= {int(event["step"]): event["step_s"] for event in ordered}
    if ordered:
        tally.first_loss, tally.last_loss = ordered[0]["loss"], ordered[-1]["loss"]
    tally.held_out_losses += sorted(held_out.items())
