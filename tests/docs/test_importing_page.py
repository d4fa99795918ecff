"""What the page about other trainers promises is what the import does."""

import re

from tests.docs.importing_page import PAGE, PARTS, written


def test_the_tables_are_those_of_the_import() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) == PARTS
    assert text == written(text), "Run: python -m tests.docs.importing_page"


def test_control_a_changed_cell_is_seen() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert written(text.replace("`optimizer.lr`", "`optimizer.rate`")) == text
