"""The times on the first page and in README are those of the recorded trial, which types what the page shows."""

from pathlib import Path

import pytest

from tests.docs.test_documentation import STORY, lines
from tools.first_minutes import FIRSTS, PAGE, README, commands, record, written


@pytest.mark.parametrize("path", [PAGE, README], ids=lambda path: path.stem)
def test_the_times_are_those_of_the_trial(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "<!-- figures: trial -->" in text
    assert text == written(text, record(), brief=path == README), "Run: python -m tools.first_minutes"


def test_control_another_trial_is_another_page() -> None:
    figures = record()
    slower = {**figures, FIRSTS[0]: {**figures[FIRSTS[0]], "after_s": 4000.0}}
    text = PAGE.read_text(encoding="utf-8")
    assert "1 h 06 min" in written(text, slower, brief=False)
    assert "1 h 06 min" not in text


def test_the_trial_types_every_command_of_the_page() -> None:
    typed = commands(PAGE.read_text(encoding="utf-8"))
    assert [line for line in typed if line.startswith("foretune ")] == lines(STORY[0])
    assert [line.split("=")[0] for line in typed if line.startswith("pip ")] == [
        "pip install foretune",
        "pip install torch",
        "pip install 'foretune[train]'",
    ]


def test_the_trial_is_in_order() -> None:
    after = [record()[first]["after_s"] for first in FIRSTS]
    assert after == sorted(after)
    assert all(record()[first]["of_which_installing_s"] < record()[first]["after_s"] for first in FIRSTS)
