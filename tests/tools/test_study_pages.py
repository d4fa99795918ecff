"""Results of a series in its page of the documentation."""

from pathlib import Path

import pytest
from PIL import Image

from tools.study_pages import DOCS, show_series

REPORT = """# Which one is best?

Measured on 2 cores of a CPU: `foretune study inference`

**Speed: one trains fastest.**

- **How fast is each?** One trains 2 times as fast.

## How fast is each?

20 steps for every run.

![Speed of each](figures/speed.png)

| configuration | samples/s |
|---|---|
| one | 2 |
"""


def page_of(docs: Path) -> Path:
    page = docs / "studies" / "inference.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Title\n\n<!-- measured -->\n\nold\n\n<!-- end of what was measured -->\n\n## Forecast\n")
    return page


def test_the_answers_and_figures_of_a_series_replace_older_ones(tmp_path: Path) -> None:
    page = page_of(tmp_path / "docs")
    folder = tmp_path / "studies" / "inference"
    (folder / "figures").mkdir(parents=True)
    (folder / "report.md").write_text(REPORT)
    Image.new("RGB", (8, 8), "white").save(folder / "figures" / "speed.png")
    assert show_series(folder, tmp_path / "docs") == page
    text = page.read_text()
    assert "old" not in text
    assert "## Measured here\n\nMeasured on 2 cores of a CPU" in text.replace("\n\n\n", "\n\n")
    assert "Speed: one trains fastest." in text
    assert "### How fast is each?\n\nOne trains 2 times as fast.\n" in text
    assert "![Speed of each](../pictures/studies/inference-speed.png)" in text
    assert text.endswith("<!-- end of what was measured -->\n\n## Forecast\n")
    assert Image.open(tmp_path / "docs/pictures/studies/inference-speed.png").size == (8, 8)
    assert show_series(folder, tmp_path / "docs").read_text() == text, "a second time changes nothing"


@pytest.mark.parametrize(
    "page", sorted(set((DOCS / "studies").glob("*.md")) - {DOCS / "studies" / "index.md"}), ids=lambda page: page.stem
)
def test_every_page_has_its_place_for_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.index("<!-- measured -->") < text.index("<!-- end of what was measured -->")
