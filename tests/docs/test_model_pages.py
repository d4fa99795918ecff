"""The pages of model families are what `foretune plan` says today."""

from pathlib import Path

import pytest

from benchmarks.model_pages import FOLDER, index, load_notes, models_of, page
from foretune.catalog import TRAINABLE

AGAIN = "Run: python benchmarks/model_pages.py"


def test_every_family_has_a_page_and_notes() -> None:
    notes = load_notes()
    assert set(notes) == set(TRAINABLE)
    assert {path.stem for path in FOLDER.glob("*.md")} == {*TRAINABLE, "index"}
    assert all(note["title"] and note["objective"] and note["notes"] for note in notes.values())
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == index(notes), AGAIN


@pytest.mark.parametrize("family", TRAINABLE)
def test_a_page_is_what_is_planned_today(family: str) -> None:
    assert Path(FOLDER / f"{family}.md").read_text(encoding="utf-8") == page(family, load_notes()[family]), AGAIN
    assert models_of(family)
