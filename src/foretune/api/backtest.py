"""`backtest`: what the plan says about published measurements, against what was published."""

from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.live_steps import live_steps
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from foretune.backtests.reading import Reading
    from foretune.backtests.scale_scoring import ScaleScore
    from foretune.backtests.scoring import BacktestScore
    from foretune.backtests.shared.scoring import SharedScore
    from foretune.backtests.speed_scoring import SpeedScore
    from foretune.planner.traces import Traces

    DataFiles = str | Path | Sequence[str | Path] | None


def backtest(
    data: "DataFiles" = None, *, live: bool = False, processes: int | None = 1, observer: Observer | None = None
) -> "BacktestScore":
    """Predicts the memory of published trainings, and holds it against what was published, beside a trivial baseline.

    Args:
        data: a CSV file with the catalogue's columns, or several; without it, the catalogue's measurements.
        live: record steps the package has no trace of; takes minutes, and is kept.
        processes: how many to use; None for one on each core, from a script that is guarded by
            `if __name__ == "__main__":`.
        observer: receives progress.
    """
    from foretune.backtests.backtest import Backtest

    observer = observer or Observer()
    reading = _read(data)
    backtest = Backtest(
        _live_traces(observer) if live else None,
        lambda model, done, total: observer.preparing(f"{model} ({done} of {total} rows)", done, total),
        num_processes=processes,
    )
    return backtest.score(reading.rows, reading.left_out)


def backtest_speeds(data: "DataFiles" = None, *, observer: Observer | None = None) -> "SpeedScore":
    """Predicts step times of published trainings, each by constants that its own model had no part in.

    Args:
        data: a CSV file with the catalogue's columns, or several; without it, the catalogue's measurements.
        observer: receives progress.
    """
    from foretune.backtests.speed_scoring import speed_score
    from foretune.planner.traces import Traces

    (observer or Observer()).preparing("step times", 0, 0)
    return speed_score(_read(data).rows, Traces())


def backtest_scale(data: "DataFiles" = None, *, observer: Observer | None = None) -> "ScaleScore":
    """Predicts the speed of published trainings on eight devices and more.

    Args:
        data: a CSV file with the catalogue's columns, or several; without it, the catalogue's measurements.
        observer: receives progress.
    """
    from foretune.backtests.scale_scoring import scale_score
    from foretune.planner.traces import Traces

    (observer or Observer()).preparing("several devices", 0, 0)
    return scale_score(_read(data).rows, Traces())


def backtest_shared(data: "DataFiles", *, live: bool = False, observer: Observer | None = None) -> "SharedScore":
    """Compares the plan with measurements that people made with `foretune bench --share`, beside rules of thumb.

    Args:
        data: a CSV file, or several.
        live: record steps the package has no trace of; takes minutes, and is kept. A CPU's steps are recorded with its
            own numerics.
        observer: receives progress.
    """
    from foretune.backtests.shared.scoring import forecaster, score_shared

    observer = observer or Observer()
    reading = _read(data)
    source = live_steps(observer, lambda what: observer.preparing(what, 0, 0), needed=True) if live else None
    return score_shared(reading.shared, forecaster(source), reading.refused)


def has_other_rows(data: "DataFiles") -> bool:
    """Whether there are rows of other programs."""
    reading = _read(data)
    return bool(reading.rows or reading.left_out)


def _read(data: "DataFiles") -> "Reading":
    from foretune import catalog
    from foretune.backtests.reading import Reading, read_files

    if data is None:
        return Reading(tuple(catalog.measurements().values()), (), (), ())
    return read_files([Path(data)] if isinstance(data, (str, Path)) else [Path(one) for one in data])


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
