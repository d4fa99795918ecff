"""One trial in its own process: trains or measures the speed of an experiment, then evaluates it if requested.

An executor calls `perform`. A run that was interrupted is continued; one that has finished is not trained again.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foretune.choices.running import Parallel
from foretune.core.observer import Observer, Observers
from foretune.core.values import Plan, RunRecord
from foretune.executors.outcome import OutcomeKind, TaskFailed, TaskInterrupted
from foretune.measure.bench_request import TrainingRequest
from foretune.measure.bench_worker import measure_training
from foretune.record.progress_file import ProgressFile
from foretune.record.run_directory import RunDirectory
from foretune.sweeps.trial_request import (
    INFERENCE,
    TrialRequest,
    finished_run,
    is_evaluated,
    is_inference_measured,
    newest_run,
    resumable_run,
)
from foretune.training.devices import choose_device
from foretune.training.launching import launch_once
from foretune.training.several import resume_in_ranks, train_in_ranks
from foretune.training.train import PreparationFailed, Trained

_RANK_WORKER = "foretune.sweeps.trial_ranks"


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Does what the request says; returns the run directory, relative to the trial's folder."""
    trial = TrialRequest(**request)
    folder = Path(trial.folder)
    observer = Observers(observer, ProgressFile(folder))
    run = finished_run(folder)
    if run is None:
        with _compiled_anew():
            run = _measure_speed(trial, observer) if trial.measure == "speed" else _train(trial, observer)
    if trial.evaluation is not None and not is_evaluated(run.path):
        _evaluate(run.path, trial.evaluation, observer)
    if trial.inference is not None and not is_inference_measured(folder):
        _measure_inference(run.path, trial, observer)
    return {"run": str(run.path.relative_to(folder))}


@contextmanager
def _compiled_anew() -> Iterator[None]:
    """Code is compiled as on a machine that has none yet, whatever trials before this one left."""
    with tempfile.TemporaryDirectory(prefix="foretune-compiled-") as folder:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled", "TRITON_CACHE_DIR": f"{folder}/triton"}
        yield


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
            raise TaskFailed(_kind_of(record), record.outcome.reason or str(failure)) from failure
        run, record = trained.run, trained.record
    else:
        run, record = launch_once("A trial", parallel, _RANK_WORKER, trial.to_mapping(), observer)
    _require_finished(record)
    return run


def _parallel(trial: TrialRequest) -> Parallel:
    run = resumable_run(Path(trial.folder))
    return trial.understood().experiment.parallel if run is None else run.read_experiment()[1].parallel


def _measure_speed(trial: TrialRequest, observer: Observer) -> RunDirectory:
    """A speed is that of one process: what was interrupted is measured again."""
    folder = Path(trial.folder)
    request = TrainingRequest(
        asked={**trial.experiment, "name": trial.name},
        directory=str(folder.parent),
        folder=folder.name,
        about=trial.about,
        is_synthetic=trial.is_synthetic,
        plan=trial.plan,
    )
    run = RunDirectory(measure_training(request, observer))
    record = run.read_record()
    assert record is not None, "a measurement that ends writes its record"
    _require_finished(record)
    return run


def _require_finished(record: RunRecord) -> None:
    """A run that did not finish is the trial's outcome."""
    outcome = record.outcome
    if outcome.status == "finished":
        return
    if outcome.status == "interrupted":
        raise TaskInterrupted(outcome.reason or "the training was interrupted")
    reason = outcome.reason or f"the training ended after {outcome.steps_done} steps"
    raise TaskFailed(_kind_of(record), reason)


def _kind_of(record: RunRecord) -> OutcomeKind:
    if record.outcome.status != "out of memory":
        return "crashed"
    return "out of host memory" if choose_device("auto").type == "cpu" else _memory_of(record.outcome.reason or "")


def _memory_of(reason: str) -> OutcomeKind:
    """With an accelerator, memory of the host can run out, too."""
    is_host = "DefaultCPUAllocator" in reason or "MemoryError" in reason
    return "out of host memory" if is_host else "out of device memory"


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
