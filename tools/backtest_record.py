"""Writes down what the backtest says: `python -m tools.backtest_record`. Plans take their band from it."""

import json
import sys
from datetime import UTC, datetime
from importlib.metadata import version

from foretune import catalog
from foretune.backtests.backtest import Backtest
from foretune.backtests.inferred import without_inferences
from foretune.backtests.pairs import pairs
from foretune.backtests.scoring import BacktestScore
from foretune.catalog.backtest import RECORD_FILE, BacktestRecord
from foretune.planner.verdict import TRACE_ERROR

_MADE_WITH = ("torch", "diffusers")


def record_of(backtest: Backtest, usual: BacktestScore | None = None) -> BacktestRecord:
    """Of the catalogue's rows, by the traces of the package; `usual` is their score, where it is known."""
    rows = tuple(catalog.measurements().values())
    score = usual or backtest.score(rows)
    found = pairs(score.results)
    return BacktestRecord(
        made_on=datetime.now(UTC).date(),
        made_with={name: version(name) for name in _MADE_WITH},
        memory=score.as_dict()["memory"],
        error_by_row={result.asked.row_id: result.error for result in score.results},
        num_pairs=len(found),
        num_pairs_right=sum(pair.is_right for pair in found),
        without=tuple(without_inferences(backtest, rows, score)),
    )


def main() -> int:
    record = record_of(Backtest(progress=lambda model, done, total: _say(f"{done} of {total} rows: {model}")))
    text = json.dumps(record.model_dump(mode="json"), indent=1)
    RECORD_FILE.write_text(text + "\n", encoding="utf-8")
    _say(f"{record.num_rows} rows, band {record.error_band:.1%}: {RECORD_FILE.name}")
    if record.error_band != TRACE_ERROR.high:
        _say(f"The verdicts in it are those of the band before, {TRACE_ERROR.high:.1%}. Run this again.")
        return 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
