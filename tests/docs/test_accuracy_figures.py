"""The figures of the backtest on the pages are drawn from the records that ship with the package."""

import re

import matplotlib as mpl
import pytest

from foretune.catalog.backtest import backtest_record
from foretune.planner.timing.constants import speed_record
from tools.accuracy_figures import FOLDER, figures, memory_dots, memory_errors, speed_dots, within

AGAIN = "Run: python -m tools.accuracy_figures"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return figures()


def test_the_figures_are_those_of_the_records(drawn: dict[str, str]) -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("accuracy-*.svg")}
    assert set(stored) == set(drawn), AGAIN
    if f"Matplotlib v{mpl.__version__}" in next(iter(stored.values())):
        assert stored == drawn, AGAIN
    else:
        # Another version places its ticks and paths differently, but draws as many marks.
        assert {name: text.count("<use ") for name, text in stored.items()} == {
            name: text.count("<use ") for name, text in drawn.items()
        }, AGAIN


def test_every_row_of_the_records_is_a_mark(drawn: dict[str, str]) -> None:
    memory, speed = backtest_record(), speed_record()
    assert {dot.row: dot.error for dot in memory_dots(memory)} == dict(memory.error_by_row)
    assert {dot.row for dot in speed_dots(speed)} == set(speed.ratio_by_row)
    assert all(dot.x > 0 for dot in (*memory_dots(memory), *speed_dots(speed)))
    for name, count in (("memory", memory.num_rows), ("step-times", len(speed.ratio_by_row))):
        marks = re.search(r'id="PathCollection_1".*id="matplotlib.axis_1"', drawn[f"accuracy-{name}.svg"], re.DOTALL)
        assert marks is not None
        assert marks[0].count("<use ") == count


def test_shares_reach_the_median_and_the_p90_of_the_record() -> None:
    memory = backtest_record()
    steps = list(within(list(memory.error_by_row.values())))
    largest, share = steps[-1]
    assert largest == max(abs(error) for error in memory.error_by_row.values()) * 100
    assert share == 100
    p90 = memory.memory["p90_abs_error"] * 100
    assert sum(error <= p90 for error, _ in steps) / len(steps) == pytest.approx(0.9, abs=0.02)


def test_control_another_record_is_another_figure(drawn: dict[str, str]) -> None:
    record = backtest_record()
    (row, error), *_ = record.error_by_row.items()
    other = record.model_copy(update={"error_by_row": {**record.error_by_row, row: error + 0.01}})
    assert memory_errors(other) != drawn["accuracy-memory.svg"]
    assert memory_errors(record) == drawn["accuracy-memory.svg"]
