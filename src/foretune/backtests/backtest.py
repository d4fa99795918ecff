"""The backtest: every row is asked, on all cores where that is possible."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from multiprocessing import get_context

from foretune.backtests.baseline import baseline_bytes
from foretune.backtests.forecast import Forecast, LastEvents, forecast
from foretune.backtests.questions import BacktestQuestion, LeftOut
from foretune.backtests.rows import is_exact, question
from foretune.backtests.scoring import BacktestScore, FitResult, Result
from foretune.catalog import Measurement
from foretune.config.from_trainers.dialects import DIALECTS, Dialect
from foretune.core.values.base import content_hash
from foretune.planner.traces import NotTraced, Traces

TracesByModel = Callable[[str], Traces]
OnModel = Callable[[str, int, int], None]
"""Called with the model that is asked about, how many rows are done and how many there are."""

_ROWS_PER_TASK = 8
"""A process that is done takes the next rows; the fewer they are, the less the last one is waited for."""


@dataclass(frozen=True)
class Said:
    """The plan's answer to a question, or why there is none."""

    forecast: Forecast | None
    why_not: str = ""


class Backtest:
    """A backtest on the traces of the package. What was forecast is kept: the same training is asked for once."""

    def __init__(
        self, traces: TracesByModel | None = None, progress: OnModel | None = None, *, num_processes: int | None = None
    ) -> None:
        """`traces`: others than the package's. Then all rows are asked in this process, as with `num_processes` of 1;
        None takes all cores.
        """
        self._traces, self._progress = traces, progress or (lambda _model, _done, _total: None)
        self._num_processes = 1 if traces is not None else num_processes or num_cores()
        self._known: dict[str, Said] = {}

    def score(
        self,
        rows: Iterable[Measurement],
        unreadable: Sequence[LeftOut] = (),
        dialects: Sequence[Dialect] = DIALECTS,
    ) -> BacktestScore:
        """Every row is turned into a question, or a reason why not, before any is forecast."""
        # Rows of a file may have the same id, so each goes with its own question.
        asked = [(row, question(row, dialects)) for row in rows]
        left_out = [*unreadable, *(found for row, found in asked if is_exact(row) and isinstance(found, LeftOut))]
        posed = [(row, found) for row, found in asked if isinstance(found, BacktestQuestion) and _is_wanted(row, found)]
        self._ask([found for _, found in posed])
        results, fits, not_judged = [], [], list[LeftOut]()
        for row, one in posed:
            said = self._known[_key(one)]
            if said.forecast is None:
                found = LeftOut(row_id=one.row_id, source=one.source, reason=said.why_not)
                (left_out if _wants_peak(row, one) else not_judged).append(found)
                continue
            if _wants_peak(row, one):
                results.append(_result(one, said.forecast))
            if one.fitted is not None and said.forecast.verdict is not None:
                fits.append(FitResult(one, bool(one.fitted), said.forecast.verdict))
        num_exact = sum(is_exact(row) for row, _ in asked)
        return BacktestScore(tuple(results), tuple(fits), tuple(left_out), num_exact, tuple(not_judged))

    def _ask(self, questions: Sequence[BacktestQuestion]) -> None:
        fresh = {key: one for one in questions if (key := _key(one)) not in self._known}
        done = 0
        for part, answers in self._answers(list(_parts(list(fresh.values())))):
            done += len(part)
            self._progress(part[-1].model, done, len(fresh))
            self._known.update(zip(map(_key, part), answers, strict=True))

    def _answers(self, parts: list[list[BacktestQuestion]]) -> Iterator[tuple[list[BacktestQuestion], list[Said]]]:
        num_processes = min(self._num_processes, len(parts))
        if num_processes <= 1:
            yield from ((part, _answered(part, self._traces)) for part in parts)
            return
        # Started fresh, so that it does not matter what else this process has loaded or which threads it runs.
        # Hundreds of thousands of small objects, next to none of them in cycles: looking for those costs a quarter.
        with ProcessPoolExecutor(num_processes, get_context("spawn"), initializer=gc.disable) as pool:
            yield from zip(parts, pool.map(_answered, parts), strict=True)


def run_backtest(
    rows: Iterable[Measurement],
    traces: TracesByModel,
    unreadable: Sequence[LeftOut] = (),
    progress: OnModel | None = None,
) -> BacktestScore:
    """The backtest on given traces, in this process."""
    return Backtest(traces, progress).score(rows, unreadable)


def num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _traces_of_package() -> Traces:
    """One in each process, so that it reads no trace twice."""
    return Traces()


def _parts(questions: list[BacktestQuestion]) -> Iterator[list[BacktestQuestion]]:
    """A few rows of one model each, in their order: neighbours are often one training on two devices."""
    for _, group in groupby(questions, key=lambda one: one.model):
        rows = list(group)
        yield from (rows[start : start + _ROWS_PER_TASK] for start in range(0, len(rows), _ROWS_PER_TASK))


def _answered(part: list[BacktestQuestion], traces: TracesByModel | None = None) -> list[Said]:
    last, found = LastEvents(), list[Said]()
    for one in part:
        try:
            known = _traces_of_package() if traces is None else traces(one.model)
            found.append(Said(forecast(one, known, last)))
        except NotTraced as error:
            found.append(Said(None, str(error)))
    return found


def _key(asked: BacktestQuestion) -> str:
    """Equal for questions that have the same forecast."""
    return content_hash(
        [
            asked.experiment.whole_hash(),
            repr(asked.sizes),
            *asked.resident,
            "before",
            *asked.loaded_before,
            asked.device,
            asked.device_bytes,
            *asked.dialect.while_running(),
        ]
    )


def _is_wanted(row: Measurement, asked: BacktestQuestion) -> bool:
    return _wants_peak(row, asked) or (asked.fitted is not None and asked.device_bytes is not None)


def _wants_peak(row: Measurement, asked: BacktestQuestion) -> bool:
    return is_exact(row) and asked.published is not None


def _result(asked: BacktestQuestion, said: Forecast) -> Result:
    assert asked.published is not None
    return Result(
        asked=asked,
        published_bytes=asked.published.num_bytes,
        peak=asked.published.peak,
        predicted_bytes=said.of(asked.published.peak),
        baseline_bytes=baseline_bytes(asked),
    )
