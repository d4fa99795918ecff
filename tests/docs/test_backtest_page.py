"""What pages say about the backtest is what its record says, and the record is what the program says."""

import json
import re
from pathlib import Path

import pytest

from foretune.catalog.backtest import RECORD_FILE, BacktestRecord, backtest_record
from foretune.planner.verdict import TRACE_ERROR
from tests.docs.backtest_page import PAGE, percent, unexplained, written

ROOT = Path(__file__).parents[2]
RECORD = backtest_record()


def test_the_page_has_the_figures_of_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- figures: (\w+) -->", text)) == {"peaks", "verdicts", "inferred", "worst"}
    assert text == written(text, RECORD), "Run: python -m tests.docs.backtest_page"


def test_every_row_beyond_the_band_is_on_the_page() -> None:
    assert list(unexplained(RECORD)) == []


def test_control_another_record_makes_another_page() -> None:
    """The generator does not write down what it finds."""
    values = json.loads(RECORD_FILE.read_text(encoding="utf-8"))
    values["memory"]["p90_abs_error"] = 0.4321
    other = BacktestRecord.model_validate(values)
    text = PAGE.read_text(encoding="utf-8")
    assert "43.3 %" in written(text, other)
    assert written(text, other) != text


@pytest.mark.parametrize("name", ["README.md", "docs/planning.md", "docs/forecast.md"])
def test_other_pages_have_the_figures_of_the_record(name: str) -> None:
    text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    memory = RECORD.memory
    expected = {
        "README.md": (
            (
                f"on {memory['num_rows']} published peaks the median error is {percent(memory['median_abs_error'])} "
                f"and nine of ten are within {percent(memory['p90_abs_error'])}"
            ),
            f"{memory['allocated']['num_rows']} of them are from one trainer",
        ),
        "docs/planning.md": (f"The band is {percent(RECORD.error_band)} of what the allocator holds",),
        "docs/forecast.md": (f"the band reaches 15 % up instead of {percent(RECORD.error_band)}",),
    }
    for sentence in expected[name]:
        assert sentence in text, f"{name} does not say: {sentence}"


def test_the_band_is_the_records() -> None:
    assert TRACE_ERROR.low == TRACE_ERROR.high == RECORD.error_band
    within = sum(abs(error) <= RECORD.error_band for error in RECORD.error_by_row.values())
    assert within >= 0.9 * RECORD.num_rows
    assert RECORD.num_rows == RECORD.memory["num_rows"]
