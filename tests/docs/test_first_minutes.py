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


def test_a_trial_is_shown_on_both_pages() -> None:
    times = {"after_s": 4000.0, "of_which_installing_s": 700.0, "processor_s": 90.0}
    trial = {**dict.fromkeys(FIRSTS, times), "date": "1 May 2026", "beside": "idle otherwise"}
    page = written(PAGE.read_text(encoding="utf-8"), trial, brief=False)
    assert page.count("| 1 min 30 s | 1 h 06 min | 11 min 40 s |") == len(FIRSTS)
    assert "on 1 May 2026: two CPU cores, idle otherwise" in page
    assert "takes 1 min 30 s of processor time" in written(README.read_text(encoding="utf-8"), trial, brief=True)


def test_the_trial_types_every_command_of_the_page() -> None:
    typed = commands(PAGE.read_text(encoding="utf-8"))
    assert [line for line in typed if line.startswith("foretune ")] == lines(STORY[0])
    assert [line.split("=")[0] for line in typed if line.startswith("pip ")] == [
        "pip install foretune",
        "pip install torch",
        "pip install 'foretune[train]'",
    ]


def test_a_recorded_trial_is_in_order() -> None:
    trial = record()
    if trial is not None:
        after = [trial[first]["after_s"] for first in FIRSTS]
        assert after == sorted(after)
        assert all(trial[first]["of_which_installing_s"] < trial[first]["after_s"] for first in FIRSTS)
