"""The table of tested hardware is that of the tests: each entry has tests that run on it."""

import pytest

from tests.architecture.source_tree import REPOSITORY
from tests.docs.hardware_table import HARDWARE, MARKERS, PAGES, REAL, TESTED, table, table_on


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_has_the_table(page) -> None:
    assert table_on(page.read_text(encoding="utf-8")) == table(), "python -m tests.docs.hardware_table writes it"


def test_every_entry_names_tests_that_run_on_that_hardware() -> None:
    for what, tests in TESTED.items():
        for hardware, files in tests.items():
            assert hardware in HARDWARE
            for path in files:
                text = (REPOSITORY / path).read_text(encoding="utf-8")
                assert "def test_" in text, (what, path)
                marked = [marker for marker in MARKERS.get(hardware, ("def test_",)) if marker in text]
                assert marked, f"{what} on {hardware}: no test of {path} runs there"


def test_hardware_is_real_or_has_a_simulation() -> None:
    assert set(HARDWARE) == {*REAL, *MARKERS}
