"""A sink that fails must not end a training."""

from collections.abc import Callable
from pathlib import Path

from foretune.core.errors import UserError
from foretune.core.observer import Observer, StepReport


class Guarded(Observer):
    """Passes on what it hears until the tracker fails; then says so once and stays silent."""

    def __init__(self, name: str, said_to: Observer) -> None:
        self._tracker: Observer | None = None
        self._name, self._said_to = name, said_to

    def open(self, make: Callable[[], Observer]) -> None:
        try:
            self._tracker = make()
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tracker's library can raise, networks included
            self._put_away(error)

    def stepped(self, report: StepReport) -> None:
        self._pass(lambda tracker: tracker.stepped(report))

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        self._pass(lambda tracker: tracker.validated(step, held_out_loss, samples))

    def saved(self, step: int, path: Path) -> None:
        self._pass(lambda tracker: tracker.saved(step, path))

    def ended(self) -> None:
        self._pass(lambda tracker: tracker.ended())

    def _pass(self, call: Callable[[Observer], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as error:  # noqa: BLE001 - as above
            self._put_away(error)

    def _put_away(self, error: Exception) -> None:
        self._tracker = None
        first = (str(error).strip().splitlines() or ["no reason given"])[0]
        text = f"{self._name} failed and hears no more of this run: {type(error).__name__}: {first}"
        self._said_to.warning(text + ". The training goes on; events.jsonl has everything.")
