"""Strategies: which combinations of a sweep to try."""

from collections.abc import Sequence
from pathlib import Path

from foretune.choices.sweep import FrontierStrategy, GridStrategy, GuidedStrategy, RandomStrategy, SweepFile
from foretune.sweeps.strategies.drawn import Drawn
from foretune.sweeps.strategies.frontier import FrontierSearch
from foretune.sweeps.strategies.grid import GridSearch
from foretune.sweeps.strategies.guided import JOURNAL, Guided
from foretune.sweeps.strategies.seam import PointResult, SearchSpace, Strategy


def open_strategy(file: SweepFile, space: SearchSpace, known: Sequence[PointResult], folder: Path) -> Strategy:
    """The strategy that a sweep file names.

    Args:
        file: the sweep.
        space: what there is to choose from.
        known: what an earlier start of the sweep has run.
        folder: of the sweep.
    """
    choice = file.strategy
    if isinstance(choice, GridStrategy):
        return GridSearch(space)
    if isinstance(choice, RandomStrategy):
        return Drawn(space, choice.trials, choice.seed)
    if isinstance(choice, GuidedStrategy):
        return Guided(space, choice.trials, choice.objectives, choice.seed, known, folder / JOURNAL)
    assert isinstance(choice, FrontierStrategy), "the schema knows no other kind"
    return FrontierSearch(space, choice.key, uses_forecast=choice.uses_forecast)
