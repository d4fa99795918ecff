"""What looks at the loop from outside: a profiler, sensors, an alarm. None of them can end a run."""

import traceback
from collections.abc import Sequence
from typing import Protocol

from foretune.core.observer import Observer
from foretune.record.events import EventLog


class Instrument(Protocol):
    """Called for each step; must not wait for the device unless that is what it is for."""

    def before_step(self, step: int) -> None:
        """The step of this number, counted from 0, is about to begin."""

    def after_step(self, step: int) -> None:
        """The step has been handed to the device, which may still work on it."""

    def close(self) -> None:
        """Nothing more will come, however the run ended."""


class Instruments:
    """Several as one. An instrument that fails is switched off with a warning; the run continues."""

    def __init__(
        self, instruments: Sequence[Instrument], events: EventLog, observer: Observer, warnings: list[str]
    ) -> None:
        self._instruments = tuple(instruments)
        self._events, self._observer, self._warnings = events, observer, warnings

    def before_step(self, step: int) -> None:
        for instrument in self._instruments:
            try:
                instrument.before_step(step)
            except Exception as error:  # noqa: BLE001 - whatever it raises, the training is worth more
                self._put_away(instrument, error)

    def after_step(self, step: int) -> None:
        for instrument in self._instruments:
            try:
                instrument.after_step(step)
            except Exception as error:  # noqa: BLE001 - as above
                self._put_away(instrument, error)

    def close(self) -> None:
        for instrument in self._instruments:
            try:
                instrument.close()
            except Exception as error:  # noqa: BLE001 - as above
                self._put_away(instrument, error)
        self._instruments = ()

    def _put_away(self, failed: Instrument, error: Exception) -> None:
        self._instruments = tuple(instrument for instrument in self._instruments if instrument is not failed)
        text = f"{type(failed).__name__} failed and was put away: {type(error).__name__}: {error}"
        self._warnings.append(text)
        self._events.append("instrument failed", error=text, traceback=traceback.format_exc())
        self._observer.warning(text + ". The training goes on.")
