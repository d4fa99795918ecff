"""The backtest: published measurements as questions that a forecast can answer, and reasons where one cannot."""

from foretune.backtests.baseline import baseline_bytes
from foretune.backtests.questions import BacktestQuestion, LeftOut, Peak, Published, RowSizes
from foretune.backtests.reading import read_rows
from foretune.backtests.rows import is_exact, question
from foretune.config.from_trainers.dialects import DIALECTS, Dialect, dialect_of

__all__ = [
    "DIALECTS",
    "BacktestQuestion",
    "Dialect",
    "LeftOut",
    "Peak",
    "Published",
    "RowSizes",
    "baseline_bytes",
    "dialect_of",
    "is_exact",
    "question",
    "read_rows",
]
