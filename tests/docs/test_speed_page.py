"""What the page about step times says is what their record says, and the record is what the program says."""

import json
import re

from foretune.planner.timing.constants import SPEED_RECORD_FILE, SpeedRecord, speed_record
from tests.docs.speed_page import PAGE, unexplained, written

RECORD = speed_record()


def test_the_page_has_the_figures_of_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- figures: (\w+) -->", text)) == {"speeds", "worst"}
    assert text == written(text, RECORD), "Run: python -m tests.docs.speed_page"


def test_the_worst_rows_are_named() -> None:
    assert list(unexplained(RECORD)) == []


def test_control_another_record_makes_another_page() -> None:
    values = json.loads(SPEED_RECORD_FILE.read_text(encoding="utf-8"))
    values["speed"]["median_abs_error"] = 0.4321
    text = PAGE.read_text(encoding="utf-8")
    other = written(text, SpeedRecord.model_validate(values))
    assert "43.2 %" in other
    assert other != text
