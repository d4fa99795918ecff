"""Records what the backtest of speeds found: `python -m tools.speed_record`. Plans take constants and band from it."""

import sys
from datetime import UTC, datetime

from foretune import catalog
from foretune.backtests.speed_scoring import SpeedScore, speed_score
from foretune.planner.timing.constants import SPEED_RECORD_FILE, SpeedRecord
from foretune.planner.traces import Traces


def record_of(score: SpeedScore) -> SpeedRecord:
    return SpeedRecord(
        date=datetime.now(UTC).date(),
        speed=score.as_dict()["speed"],
        ratio_by_row={
            result.question.asked.row_id: round(ratio, 6)
            for result, ratio in zip(score.results, score.ratios, strict=True)
        },
    )


def main() -> int:
    record = record_of(speed_score(catalog.measurements().values(), Traces()))
    SPEED_RECORD_FILE.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(record.ratio_by_row)} rows, p90 {record.p90_error:.1%}: {SPEED_RECORD_FILE.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
