"""Sinks that other tools read, one file each, fed with what an observer hears."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from foretune.config.readiness import missing_trackers
from foretune.core.extras import is_installed
from foretune.core.observer import Observer
from foretune.core.registry import Registry
from foretune.training.trackers.guarded import Guarded
from foretune.training.trackers.tracker import Tracker

TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    {
        "tensorboard": "foretune.training.trackers.tensorboard_files:TensorBoard",
        "wandb": "foretune.training.trackers.weights_and_biases:WeightsAndBiases",
        "mlflow": "foretune.training.trackers.mlflow_store:MlflowStore",
        "trackio": "foretune.training.trackers.trackio_board:TrackioBoard",
    },
)


def require_trackers(names: Iterable[str]) -> None:
    """Raises MissingExtra where a tracker's packages are not installed; nothing is imported."""
    absent = [name for name in names if not is_installed(name)]
    if absent:
        raise missing_trackers(absent)


def open_trackers(names: Sequence[str], run: Path, said_to: Observer) -> list[Observer]:
    """Every tracker of a run. One that fails, now or later, is switched off with a warning; the run continues."""
    require_trackers(names)
    found = []
    for name in names:
        guarded = Guarded(name, said_to)
        guarded.open(lambda name=name: TRACKERS[name](run))  # type: ignore[misc]
        found.append(guarded)
    return list(found)
