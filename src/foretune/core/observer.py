"""Who watches a run: a progress bar, a tracker, a test. The run does not know which."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretune.core.values.plan import Plan


@dataclass(frozen=True)
class StepReport:
    """What is known of a step when its numbers have arrived from the device."""

    step: int
    num_steps: int | None
    """None where the run ends when its time is up."""
    loss: float
    grad_norm: float | None
    lr: float
    step_s: float
    samples_per_step: int
    phases_s: dict[str, float] = field(default_factory=dict)
    """The step's seconds by phase."""
    host_phases_s: dict[str, float] | None = None
    """The seconds the host took to hand the step over, where the device has a clock of its own."""
    num_owed: int | None = None
    """Steps that the device still owed when this one had been handed over."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """What process ("host") and device hold after the step."""
    left_s: float | None = None
    """Until the run's time is up; None where it ends after a number of steps."""
    peak_bytes: int | None = None
    """High-water mark of device or process memory, where the run is in another process than the observer."""


class Observer:
    """Listens and does nothing; others override what they care about."""

    patience_s: float = 0.5
    """How long the report of a step may wait. Several steps reported at once cost a third of what they cost one by
    one, and half a second is soon enough for a person. Zero: after every step, for those who act on what they hear."""

    def imported(self) -> None:
        """torch, diffusers and transformers are imported now, with the modules that use them; nothing else was done."""

    def planned(self, plan: "Plan") -> None:
        """The forecast for this run on this machine, before its first step."""

    def began(self, run: Path) -> None:
        """The run directory is there; every file of the run will be in it."""

    def message(self, text: str) -> None:
        """Something a person should read."""

    def warning(self, text: str) -> None:
        """Something a person should not miss."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Work before the first step, such as encoding images. A total of 0: nothing is counted."""

    def stepped(self, report: StepReport) -> None:
        """A step's numbers."""

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        """A validation's result."""

    def saved(self, step: int, path: Path) -> None:
        """A checkpoint is on the disk."""

    def ended(self) -> None:
        """Nothing more will come, however the run ended."""


class Observers(Observer):
    """Several as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.patience_s = min((observer.patience_s for observer in observers), default=Observer.patience_s)

    def imported(self) -> None:
        for observer in self._observers:
            observer.imported()

    def planned(self, plan: "Plan") -> None:
        for observer in self._observers:
            observer.planned(plan)

    def began(self, run: Path) -> None:
        for observer in self._observers:
            observer.began(run)

    def message(self, text: str) -> None:
        for observer in self._observers:
            observer.message(text)

    def warning(self, text: str) -> None:
        for observer in self._observers:
            observer.warning(text)

    def preparing(self, what: str, done: int, total: int) -> None:
        for observer in self._observers:
            observer.preparing(what, done, total)

    def stepped(self, report: StepReport) -> None:
        for observer in self._observers:
            observer.stepped(report)

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        for observer in self._observers:
            observer.validated(step, held_out_loss, samples)

    def saved(self, step: int, path: Path) -> None:
        for observer in self._observers:
            observer.saved(step, path)

    def ended(self) -> None:
        for observer in self._observers:
            observer.ended()
