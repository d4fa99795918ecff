"""What the pages about other trainers promise is what the import does, and the keys they name exist here."""

import re

import pytest

from tests.docs.importing_page import DOCS, IMPORTING, PAGES, parts, written

AGAIN = "Run: python -m tests.docs.importing_page"
AMD = DOCS / "coming-from" / "amd-benchmark.md"


@pytest.mark.parametrize("program", [None, *PAGES], ids=str)
def test_the_tables_are_those_of_the_import(program: str | None) -> None:
    path = IMPORTING if program is None else PAGES[program]
    text = path.read_text(encoding="utf-8")
    assert {"programs", "unlike"} <= set(parts(text)) if program is None else {"keys", "missing"} <= set(parts(text))
    assert text == written(text, program), AGAIN


def test_control_a_changed_cell_is_seen() -> None:
    text = PAGES["simpletuner"].read_text(encoding="utf-8")
    assert written(text.replace("`optimizer.lr`", "`optimizer.rate`"), "simpletuner") == text


def test_every_program_is_linked() -> None:
    named = set(re.findall(r"\]\(coming-from/([\w-]+)\.md\)", IMPORTING.read_text(encoding="utf-8")))
    assert named == {path.stem for path in (DOCS / "coming-from").glob("*.md")} == {*PAGES, AMD.stem}
