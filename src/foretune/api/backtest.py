"""`backtest`: what the plan says about published measurements, against what was published."""

from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.live_steps import live_steps
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

    from foretune.backtests.scale_scoring import ScaleScore
    from foretune.backtests.scoring import BacktestScore
    from foretune.backtests.speed_scoring import SpeedScore
    from foretune.planner.traces import Traces


def backtest(
    data: str | Path | None = None, *, live: bool = False, processes: int | None = 1, observer: Observer | None = None
) -> "BacktestScore":
    """Predicts the memory of published trainings, and holds it against what was published, beside a trivial baseline.

    Args:
        data: a CSV file with the catalogue's columns; without it, the catalogue's measurements.
        live: record steps the package has no trace of; takes minutes, and is kept.
        processes: how many to use; None for one on each core, from a script that is guarded by
            `if __name__ == "__main__":`.
        observer: receives progress.
    """
    from foretune import catalog
    from foretune.backtests.backtest import Backtest
    from foretune.backtests.reading import read_rows

    observer = observer or Observer()
    rows, unreadable = (tuple(catalog.measurements().values()), ()) if data is None else read_rows(Path(data))
    backtest = Backtest(
        _live_traces(observer) if live else None,
        lambda model, done, total: observer.preparing(f"{model} ({done} of {total} rows)", done, total),
        num_processes=processes,
    )
    return backtest.score(rows, unreadable)


def backtest_speeds(data: str | Path | None = None, *, observer: Observer | None = None) -> "SpeedScore":
    """Predicts step times of published trainings, each by constants that its own model had no part in.

    Args:
        data: a CSV file with the catalogue's columns; without it, the catalogue's measurements.
        observer: receives progress.
    """
    from foretune import catalog
    from foretune.backtests.reading import read_rows
    from foretune.backtests.speed_scoring import speed_score
    from foretune.planner.traces import Traces

    (observer or Observer()).preparing("step times", 0, 0)
    rows = tuple(catalog.measurements().values()) if data is None else read_rows(Path(data))[0]
    return speed_score(rows, Traces())


def backtest_scale(data: str | Path | None = None, *, observer: Observer | None = None) -> "ScaleScore":
    """Predicts the speed of published trainings on eight devices and more.

    Args:
        data: a CSV file with the catalogue's columns; without it, the catalogue's measurements.
        observer: receives progress.
    """
    from foretune import catalog
    from foretune.backtests.reading import read_rows
    from foretune.backtests.scale_scoring import scale_score
    from foretune.planner.traces import Traces

    (observer or Observer()).preparing("several devices", 0, 0)
    rows = tuple(catalog.measurements().values()) if data is None else read_rows(Path(data))[0]
    return scale_score(rows, Traces())


def _live_traces(observer: Observer) -> "Callable[[str], Traces]":
    """The package's traces; forms that are not among them are recorded, and kept in the user's cache."""
    from foretune.choices.model import resolve_model
    from foretune.planner.traces import Traces

    live = live_steps(observer, lambda what: observer.preparing(what, 0, 0), needed=True)
    known: dict[str, Traces] = {}

    def find(model: str) -> Traces:
        if model not in known:
            known[model] = Traces(None if live is None else live.tracer(resolve_model(model)))
        return known[model]

    return find
