"""A trial on several nodes: the cluster starts all of its processes, and each of them performs the trial."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretune.choices.running import Parallel
from foretune.config.reading import Asked, understand
from foretune.core.observer import Observer
from foretune.core.values import Plan
from foretune.executors.outcome import TaskFailed, TaskInterrupted
from foretune.measure.bench_worker import measure_steps
from foretune.record.run_directory import RunDirectory
from foretune.sweeps.trial_ends import require_finished, with_empty_compile_cache
from foretune.sweeps.trial_request import TrialRequest, finished_run, newest_run, resumable_run
from foretune.training.launching import RunEnded
from foretune.training.ranks import Ranks, is_of_lost_process
from foretune.training.several import in_ranks
from foretune.training.train import PreparationFailed, resume, train


def run_on_nodes(trial: TrialRequest, observer: Observer) -> RunDirectory:
    """Trains or measures in this process and those that were started beside it; returns the run of all of them.

    The first process decides whether there is a run to continue: another node may not see its files yet.
    """
    asked = trial.understood()
    parallel = asked.experiment.parallel
    with _whose_failure(parallel), in_ranks(parallel) as ranks, with_empty_compile_cache():
        observer = observer if ranks.is_first else Observer()
        finished = _run_of_first(finished_run(Path(trial.folder)) if ranks.is_first else None, ranks)
        if finished is not None:
            return finished
        if trial.measure == "speed":
            return _measured(trial, observer, ranks)
        return _trained(trial, asked, observer, ranks)


def _trained(trial: TrialRequest, asked: Asked, observer: Observer, ranks: Ranks) -> RunDirectory:
    folder = Path(trial.folder)
    run = _run_of_first(resumable_run(folder) if ranks.is_first else None, ranks)
    if run is not None:
        trained = resume(run, observer, ranks=ranks)
    else:
        plan = None if trial.plan is None else Plan.from_mapping(trial.plan)
        about = trial.about
        try:
            trained = train(asked, folder.parent, observer, plan, folder_name=folder.name, about=about, ranks=ranks)
        except PreparationFailed:  # in the first process, which records it
            _raise_as_recorded(trial)
            raise
    require_finished(trained.record)
    return trained.run


def _measured(trial: TrialRequest, observer: Observer, ranks: Ranks) -> RunDirectory:
    request = trial.to_measure()
    asked = understand(request.asked, source="The trial's experiment")
    try:
        run = measure_steps(request, asked, observer, ranks)
    except RunEnded:
        if ranks.is_first:
            _raise_as_recorded(trial)
        raise
    if ranks.is_first:
        require_finished(run.read_record())
    return run


def _run_of_first(run: RunDirectory | None, ranks: Ranks) -> RunDirectory | None:
    """The run that the first process has found, in all of them."""
    path = ranks.from_first(None if run is None else str(run.path.absolute()))
    return None if path is None else RunDirectory(Path(path))


def _raise_as_recorded(trial: TrialRequest) -> None:
    """Of a run that the first process has recorded as failed: raises with the kind of its end."""
    run = newest_run(Path(trial.folder))
    if run is not None:
        require_finished(run.read_record())


@contextmanager
def _whose_failure(parallel: Parallel) -> Iterator[None]:
    """Tells the failure of this process from that of another one, which this one sees as a closed connection."""
    try:
        yield
    except TaskInterrupted:
        raise
    except Exception as error:
        if is_of_lost_process(error, parallel):
            raise TaskFailed("crashed", str(error), is_of_another=True) from error
        raise
