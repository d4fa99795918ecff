"""Sinks that other tools read, one file each, fed with what an observer hears."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from foretune.config.readiness import missing_trackers
from foretune.core.observer import Observer
from foretune.core.registry import Registry
from foretune.core.trackers import TRACKER_SPECS
from foretune.training.trackers.guarded import Guarded
from foretune.training.trackers.tracker import Tracker

TRACKERS: Registry[type[Tracker]] = Registry("tracker", {spec.name: spec.target for spec in TRACKER_SPECS.values()})


def require_trackers(names: Iterable[str]) -> None:
    """Raises MissingExtra where a tracker's packages are not installed; nothing is imported."""
    error = missing_trackers(names)
    if error is not None:
        raise error


def open_trackers(names: Sequence[str], run: Path, said_to: Observer) -> list[Observer]:
    """Every tracker of a run. One that fails, now or later, is switched off with a warning; the run continues."""
    require_trackers(names)
    found = []
    for name in names:
        guarded = Guarded(name, said_to)
        guarded.open(lambda name=name: TRACKERS[name](run))  # type: ignore[misc]
        found.append(guarded)
    return list(found)
