"""A run in all of its processes: each joins the others, then trains."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foretune.choices.running import Parallel
from foretune.config.reading import Asked
from foretune.core.observer import Observer
from foretune.core.values import Plan
from foretune.record.run_directory import RunDirectory
from foretune.training.changed_run import read_changed
from foretune.training.devices import choose_device
from foretune.training.ranks import ALONE, Ranks, check_ranks, found_ranks, joined
from foretune.training.restarts import LAUNCH, launch_id, num_restarts, unfinished_run
from foretune.training.train import Trained, resume, train


@contextmanager
def in_ranks(parallel: Parallel) -> Iterator[Ranks]:
    """Joins the processes that a launcher started beside this one; refused where they are not as many as devices."""
    found = found_ranks()
    check_ranks(parallel, found)
    place = found or ALONE
    with joined(parallel, place, choose_device(parallel.device, place.local_rank)) as ranks:
        yield ranks


def train_in_ranks(
    asked: Asked,
    runs: Path,
    observer: Observer,
    plan: Plan | None = None,
    *,
    handles_signals: bool = True,
    folder_name: str | None = None,
    about: Mapping[str, Any] | None = None,
) -> Trained:
    """Starts a new run in this process and those that a launcher started beside it. The first one is observed.

    Where the launcher has started them again, they go on with the run that they had begun. `folder_name` and `about`
    as for `train`.
    """
    with in_ranks(asked.experiment.parallel) as ranks:
        observer = observer if ranks.is_first else Observer()
        run = _begun_before(asked, runs, ranks)
        if run is not None:
            observer.message(f"This command was started again: continuing with {run.path}.")
            return resume(run, observer, handles_signals=handles_signals, ranks=ranks)
        launch = launch_id()
        return train(
            asked,
            runs,
            observer,
            plan,
            handles_signals=handles_signals,
            folder_name=folder_name,
            about={**(about or {}), **({} if launch is None else {LAUNCH: launch})},
            ranks=ranks,
        )


def _begun_before(asked: Asked, runs: Path, ranks: Ranks) -> RunDirectory | None:
    """The run to go on with, in all processes; only some of them may know that they were started again."""
    if not any(ranks.from_all(num_restarts())):
        return None
    launch = launch_id()
    run = unfinished_run(runs, asked.experiment, launch) if ranks.is_first and launch is not None else None
    path = ranks.from_first(None if run is None else str(run.path))
    return None if path is None else RunDirectory(Path(path))


def resume_in_ranks(
    run: RunDirectory, observer: Observer, overrides: Sequence[str] = (), *, handles_signals: bool = True
) -> Trained:
    """Goes on with a run in as many processes as it was started with, or as the overrides say."""
    changed = read_changed(run, overrides) if overrides else None
    parallel = (run.read_experiment()[1] if changed is None else changed.experiment).parallel
    with in_ranks(parallel) as ranks:
        observer = observer if ranks.is_first else Observer()
        return resume(run, observer, changed=changed, handles_signals=handles_signals, ranks=ranks)
