"""What the process of a trial takes before it does anything, measured once by the executor that runs the trials."""

from foretune.config.sweep_files import SweepAsked
from foretune.executors.executor import Executor
from foretune.executors.reopening import reopen
from foretune.executors.state import read_state
from foretune.executors.task import Task
from foretune.executors.task_files import read_answer
from foretune.sweeps.forecasting import Baseline
from foretune.sweeps.sweep_folder import SweepFolder
from foretune.training.devices import peak_host_bytes

_WORKER = "foretune.sweeps.baseline_worker"
_NAME = "baseline"


def measured_baseline(asked: SweepAsked, folder: SweepFolder, executor: Executor) -> Baseline:
    """On this machine by a task; a cluster's forecasts are for its devices, whose context is in the catalogue."""
    trial = asked.trial(next(asked.points()), asked.file.seeds[0])
    here = Baseline(peak_host_bytes(), None)
    if executor.name != "local" or trial.asked is None:
        return here
    task = Task(
        name=_NAME,
        worker=_WORKER,
        request={"experiment": trial.asked.as_asked, "name": asked.name},
        folder=folder.path / _NAME,
    )
    # Libraries may have changed since the last start.
    if read_state(task.folder).kind == "ended":
        reopen(task.folder)
    executor.submit(task)
    executor.ended(None)
    outcome = read_state(task.folder).outcome
    if outcome is None or outcome.kind != "done":
        return here
    answer = read_answer(task.folder)
    return Baseline(answer["resident_bytes"], answer["private_bytes"])
