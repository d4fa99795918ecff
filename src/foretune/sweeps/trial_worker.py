"""One trial in its own process: trains or measures the speed of an experiment, then evaluates it if requested.

An executor calls `perform`. A run that was interrupted is continued; one that has finished is not trained again.
"""

from pathlib import Path
from typing import Any

from foretune.choices.running import Parallel
from foretune.core.observer import Observer, Observers
from foretune.core.values import Plan
from foretune.executors.outcome import TaskFailed
from foretune.measure.bench_worker import measure_training
from foretune.record.progress_file import ProgressFile
from foretune.record.run_directory import RunDirectory
from foretune.sweeps.trial_ends import kind_of, require_finished, with_empty_compile_cache
from foretune.sweeps.trial_on_nodes import run_on_nodes
from foretune.sweeps.trial_request import (
    INFERENCE,
    TrialRequest,
    finished_run,
    is_evaluated,
    is_inference_measured,
    newest_run,
    resumable_run,
)
from foretune.training.launching import launch_once
from foretune.training.ranks import found_ranks
from foretune.training.several import resume_in_ranks, train_in_ranks
from foretune.training.train import PreparationFailed, Trained

_RANK_WORKER = "foretune.sweeps.trial_ranks"


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Does what the request says; returns the run directory, relative to the trial's folder."""
    trial = TrialRequest(**request)
    folder, place = Path(trial.folder), found_ranks()
    if place is None or place.is_first:
        observer = Observers(observer, ProgressFile(folder))
    run = _run_here(trial, observer) if place is None else run_on_nodes(trial, observer)
    if place is not None and not place.is_first:
        return {}
    if trial.evaluation is not None and not is_evaluated(run.path):
        _evaluate(run.path, trial.evaluation, observer)
    if trial.inference is not None and not is_inference_measured(folder):
        _measure_inference(run.path, trial, observer)
    return {"run": str(run.path.relative_to(folder))}


def _run_here(trial: TrialRequest, observer: Observer) -> RunDirectory:
    """On this machine, in this process or in those that it starts for its devices."""
    run = finished_run(Path(trial.folder))
    if run is not None:
        return run
    with with_empty_compile_cache():
        return _measure_speed(trial, observer) if trial.measure == "speed" else _train(trial, observer)


def train_trial(trial: TrialRequest, observer: Observer) -> Trained:
    """Trains in this process and those that were started beside it; continues an interrupted run."""
    folder = Path(trial.folder)
    run = resumable_run(folder)
    if run is not None:
        return resume_in_ranks(run, observer)
    plan = None if trial.plan is None else Plan.from_mapping(trial.plan)
    return train_in_ranks(trial.understood(), folder.parent, observer, plan, folder_name=folder.name, about=trial.about)


def _train(trial: TrialRequest, observer: Observer) -> RunDirectory:
    parallel = _parallel(trial)
    if parallel.devices == 1:
        try:
            trained = train_trial(trial, observer)
        except PreparationFailed as failure:
            failed = newest_run(Path(trial.folder))
            record = None if failed is None else failed.read_record()
            assert record is not None, "a preparation that fails is recorded"
            raise TaskFailed(kind_of(record), record.outcome.reason or str(failure)) from failure
        run, record = trained.run, trained.record
    else:
        run, record = launch_once("A trial", parallel, _RANK_WORKER, trial.to_mapping(), observer)
    require_finished(record)
    return run


def _parallel(trial: TrialRequest) -> Parallel:
    run = resumable_run(Path(trial.folder))
    return trial.understood().experiment.parallel if run is None else run.read_experiment()[1].parallel


def _measure_speed(trial: TrialRequest, observer: Observer) -> RunDirectory:
    """A speed is that of one process: what was interrupted is measured again."""
    run = RunDirectory(measure_training(trial.to_measure(), observer))
    require_finished(run.read_record())
    return run


def _evaluate(run: Path, evaluation: dict[str, Any], observer: Observer) -> None:
    from foretune.quality.evaluating import evaluate_run
    from foretune.quality.request import EvaluationRequest

    # Tuples became lists on the way to this process.
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in evaluation.items()
    }
    evaluate_run(run, EvaluationRequest(**fields), observer)


def _measure_inference(run: Path, trial: TrialRequest, observer: Observer) -> None:
    from foretune.measure.bench_inference import InferenceChoices, bench_inference

    assert trial.inference is not None, "asked before"
    bench_inference(str(run), None, InferenceChoices(**trial.inference), Path(trial.folder) / INFERENCE, observer)
