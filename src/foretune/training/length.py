"""When a run is over: after a number of steps, or when its time is up.

The clock is looked at after every step: the step under way is finished, and the last save and validation come after
the clock has stopped. Whatever comes before the first step (loading, encoding, the first validation) is not counted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from foretune.choices.training import Clock, Train


@dataclass
class Length:
    """How far a run goes, and how far it has come."""

    num_steps: int | None
    """None where time decides."""
    limit_s: float | None = None
    clock: Clock = "steps"
    counted_s: float = 0.0
    """What the clock has counted so far, earlier processes of the run included."""
    now: Callable[[], float] = time.perf_counter
    _begun_s: float | None = None
    _step_s: float = 0.0

    @classmethod
    def of(cls, train: Train, num_steps: int | None) -> "Length":
        return cls(num_steps=num_steps, limit_s=train.seconds, clock=train.clock)

    def begin(self) -> None:
        """The first step of this process begins."""
        if self.clock == "run" and self._begun_s is None:
            self._begun_s = self.now() - self.counted_s

    def stepped(self, step_s: float) -> None:
        """A step's time has become known."""
        self._step_s = step_s
        if self.clock == "steps":
            self.counted_s += step_s

    def read(self) -> float:
        """Reads the clock; returns what it has counted."""
        if self._begun_s is not None:
            self.counted_s = self.now() - self._begun_s
        return self.counted_s

    def is_over(self, done: int, num_owed: int = 0) -> bool:
        """Whether no step follows the `done` ones. Steps that the device still owes count as long as the last one."""
        if self.limit_s is None:
            return self.num_steps is not None and done >= self.num_steps
        return self.read() + num_owed * self._step_s >= self.limit_s

    def left_s(self) -> float | None:
        """None where steps are counted."""
        return None if self.limit_s is None else max(0.0, self.limit_s - self.counted_s)
