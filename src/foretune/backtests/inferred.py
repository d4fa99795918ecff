"""The backtest without a statement that was inferred from the figures it is scored with."""

from collections.abc import Iterator, Sequence
from statistics import median

from foretune.backtests.backtest import Backtest
from foretune.backtests.scoring import BacktestScore, percentile
from foretune.catalog import Measurement
from foretune.catalog.backtest import WithoutInference
from foretune.config.from_trainers.dialects import DIALECTS, Dialect, Inference


def without_inferences(
    backtest: Backtest, rows: Sequence[Measurement], usual: BacktestScore
) -> Iterator[WithoutInference]:
    """Each inferred statement left out by itself; only what it changes is forecast again."""
    for dialect in DIALECTS:
        for inference in dialect.inferred:
            yield _without(backtest, rows, usual, dialect, inference)


def _without(
    backtest: Backtest, rows: Sequence[Measurement], usual: BacktestScore, dialect: Dialect, inference: Inference
) -> WithoutInference:
    dialects = [dialect.without(inference) if one is dialect else one for one in DIALECTS]
    score = backtest.score(rows, dialects=dialects)
    before = {result.asked.row_id: result for result in usual.results}
    now = {result.asked.row_id: result for result in score.results}
    changed = [one for name, one in now.items() if one.error != before[name].error]
    lost = before.keys() - now.keys()
    errors = score.errors()
    p90 = percentile(errors, 0.9)
    assert p90 is not None, "some rows are left"
    return WithoutInference(
        program=dialect.name,
        statement=inference.statement,
        because=inference.because,
        num_changed=len(changed) + len(lost),
        num_lost=len(lost),
        num_rows=len(errors),
        median_abs_error=median(errors),
        p90_abs_error=p90,
        changed_median_abs_error=median(abs(one.error) for one in changed) if changed else None,
    )
