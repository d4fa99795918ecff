"""What a run does, in order: training executes it, the planner replays it, the check of a log compares with it."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Self

from foretune.choices.experiment import Experiment
from foretune.core.vocabulary import RunPhase

PREPARATION = (RunPhase.CACHE_LATENTS, RunPhase.CACHE_TEXT, RunPhase.LOAD)
"""Before the first step, once. After each cache its encoders are freed and their memory is given back; from loading on
everything stays in one process."""


@dataclass(frozen=True)
class RunSchedule:
    """When a run saves and validates between its steps."""

    save_every: int | None
    validate_every: int | None
    steps_only: bool = False
    """A benchmark and a profile make steps and nothing else."""

    @classmethod
    def of(cls, experiment: Experiment, *, steps_only: bool = False) -> Self:
        return cls(experiment.save.every, experiment.validation.every, steps_only)

    def phases(
        self,
        first_step: int,
        is_last: Callable[[int], bool],
        is_stopping: Callable[[int], bool] = lambda _: False,
        validated: Collection[int] = (),
    ) -> Iterator[tuple[RunPhase, int]]:
        """Each phase after the preparation, with the number of steps that are done when it has ended.

        `is_last` and `is_stopping` get the number of steps done, once after each step. A run that is asked to stop
        saves and ends. `validated`: steps after which a run that is resumed has validated before.
        """
        done = first_step
        ends = is_last(done)
        if self._validates(done, ends) and done not in validated:
            # At the start, or where the run was stopped between a checkpoint and its validation.
            yield RunPhase.VALIDATE, done
        while not ends:
            done += 1
            yield RunPhase.STEP, done
            ends = is_last(done)
            stops = is_stopping(done)
            if not self.steps_only and (ends or stops or _is_due(done, self.save_every)):
                yield RunPhase.SAVE, done
            if stops and not ends:
                return
            if self._validates(done, ends):
                yield RunPhase.VALIDATE, done

    def _validates(self, done: int, ends: bool) -> bool:
        return not self.steps_only and (done == 0 or ends or _is_due(done, self.validate_every))


def _is_due(done: int, every: int | None) -> bool:
    return every is not None and done % every == 0
