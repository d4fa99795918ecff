"""Combinations chosen by the results so far, with optuna.

The trials' folders are the state. Optuna's own journal is written beside them for its dashboard, and made again from
the trials whenever the sweep starts.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretune.choices.sweep import AxisOption, Objective
from foretune.core.extras import require
from foretune.sweeps.strategies.seam import Point, PointResult, SearchSpace

JOURNAL = "guided.journal"
HIGHER_IS_BETTER: Mapping[Objective, bool] = {"speed": True, "memory": False, "quality": False, "money": False}
_MOST_REDRAWN = 50
"""Draws of known combinations in a row, before the next one that is not known is taken instead."""
_MOST_PARALLEL = 4
"""Trials chosen at once where the executor has a queue of its own: more of them would be chosen without results."""


class Guided:
    """Asks optuna for combinations, and reports what came of them."""

    def __init__(
        self,
        space: SearchSpace,
        trials: int,
        objectives: Sequence[Objective],
        seed: int,
        known: Sequence[PointResult],
        journal: Path,
    ) -> None:
        require("sweep", "A guided sweep")
        self.num_planned: int | None = trials
        self._space, self._objectives = space, tuple(objectives)
        self._study = _new_study(self._objectives, seed, journal)
        self._options = {axis: _Choices(options) for axis, options in space.options.items()}
        self._asked: dict[tuple[int, ...], Any] = {}
        """Optuna's trial of each combination that was proposed."""
        self._reported: set[tuple[int, ...]] = set()
        # What an earlier start of the sweep ran comes first, so that the search goes on where it was.
        self._again: list[Point] = [point for result in known if (point := self._point_of(result.labels)) is not None]

    def propose(self, results: Sequence[PointResult], num_free: Callable[[], int | None]) -> list[Point]:
        for result in results:
            self._report(result)
        if self._again:
            again, self._again = self._again[: self.num_planned], []
            self._asked |= {self._place(point): None for point in again}
            return again
        pending = len(self._asked) - len(self._reported)
        num = self._num_left()
        if num > 0:
            free = num_free()
            num = min(_MOST_PARALLEL - pending if free is None else free, num)
        found = []
        for _ in range(max(num, 0)):
            point = self._ask()
            if point is None:
                break
            found.append(point)
        return found

    def _num_left(self) -> int:
        assert self.num_planned is not None, "set at the start"
        return self.num_planned - len(self._asked)

    def _ask(self) -> Point | None:
        for _ in range(_MOST_REDRAWN):
            trial = self._study.ask()
            point = {axis: choices.suggested(trial, axis) for axis, choices in self._options.items()}
            place = self._place(point)
            if place not in self._asked and not self._space.is_excluded(point):
                self._asked[place] = trial
                return point
            self._fail(trial)
        rest = self._first_left()
        if rest is not None:
            self._asked[self._place(rest)] = None
        return rest

    def _first_left(self) -> Point | None:
        """The first combination that was not proposed."""
        for chosen in itertools.product(*(choices.options for choices in self._options.values())):
            point = dict(zip(self._options, chosen, strict=True))
            if self._place(point) not in self._asked and not self._space.is_excluded(point):
                return point
        return None

    def _report(self, result: PointResult) -> None:
        point = self._point_of(result.labels)
        place = None if point is None else self._place(point)
        if point is None or place is None or place not in self._asked or place in self._reported:
            return
        self._reported.add(place)
        values = [result.scores.get(objective) for objective in self._objectives]
        has_values = result.kind == "done" and all(value is not None for value in values)
        trial = self._asked[place]
        if trial is None:
            self._add(point, values if has_values else None)
        elif has_values:
            self._study.tell(trial, values)
        else:
            self._fail(trial)

    def _fail(self, trial: Any) -> None:
        import optuna

        # A search for one objective learns from a pruned trial that it was bad; one for several cannot.
        pruned = optuna.trial.TrialState.PRUNED if len(self._objectives) == 1 else optuna.trial.TrialState.FAIL
        self._study.tell(trial, state=pruned)

    def _add(self, point: Point, values: Sequence[float | None] | None) -> None:
        import optuna

        states = optuna.trial.TrialState
        failed = states.PRUNED if len(self._objectives) == 1 else states.FAIL
        self._study.add_trial(
            optuna.trial.create_trial(
                state=failed if values is None else states.COMPLETE,
                values=None if values is None else [value for value in values if value is not None],
                params={axis: choices.number(point[axis]) for axis, choices in self._options.items()},
                distributions={axis: choices.distribution() for axis, choices in self._options.items()},
            )
        )

    def _place(self, point: Point) -> tuple[int, ...]:
        return tuple(choices.number(point[axis]) for axis, choices in self._options.items())

    def _point_of(self, labels: Mapping[str, str]) -> Point | None:
        """None where the axes have changed since."""
        if set(labels) != set(self._options):
            return None
        point = {axis: choices.labelled(labels[axis]) for axis, choices in self._options.items()}
        return None if None in point.values() else {axis: option for axis, option in point.items() if option}


class _Choices:
    """An axis as optuna sees it: the position of its value, in order of size where the values are numbers."""

    def __init__(self, options: Sequence[AxisOption]) -> None:
        self.is_ordered = all(isinstance(o.value, int | float) and not isinstance(o.value, bool) for o in options)
        self.options = sorted(options, key=lambda option: option.value) if self.is_ordered else list(options)

    def suggested(self, trial: Any, axis: str) -> AxisOption:
        last = len(self.options) - 1
        if self.is_ordered:
            return self.options[int(trial.suggest_int(axis, 0, last))]
        return self.options[int(trial.suggest_categorical(axis, list(range(last + 1))))]

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        last = len(self.options) - 1
        return IntDistribution(0, last) if self.is_ordered else CategoricalDistribution(list(range(last + 1)))

    def number(self, option: AxisOption) -> int:
        return next(number for number, one in enumerate(self.options) if one.label == option.label)

    def labelled(self, label: str) -> AxisOption | None:
        return next((option for option in self.options if option.label == label), None)


def _new_study(objectives: Sequence[Objective], seed: int, journal: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal.unlink(missing_ok=True)
    return optuna.create_study(
        study_name="sweep",
        storage=JournalStorage(JournalFileBackend(str(journal))),
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        directions=["maximize" if HIGHER_IS_BETTER[objective] else "minimize" for objective in objectives],
    )
