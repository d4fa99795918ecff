"""Observers that watch a run for its user. One that fails is put away; the run continues."""

import traceback
from collections.abc import Iterable

from foretune.core.observer import Observer, StepReport
from foretune.record.events import EventLog


class Watchers(Observer):
    """Passes on the steps."""

    def __init__(self, watchers: Iterable[Observer], events: EventLog, observer: Observer, warnings: list[str]) -> None:
        self._watchers = list(watchers)
        self._events, self._observer, self._warnings = events, observer, warnings

    def stepped(self, report: StepReport) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher.stepped(report)
            except Exception as error:  # noqa: BLE001 - whatever it raises, the training is worth more
                self._put_away(watcher, error)

    def _put_away(self, failed: Observer, error: Exception) -> None:
        self._watchers.remove(failed)
        text = f"{type(failed).__name__} failed and was put away: {type(error).__name__}: {error}"
        self._warnings.append(text)
        self._events.append("instrument failed", error=text, traceback=traceback.format_exc())
        self._observer.warning(text + ". The training goes on.")
