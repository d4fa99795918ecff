"""Puts the results of series that were run into their pages of the documentation.

    foretune study flux-hardware
    python -m tools.study_pages studies/flux-hardware

Copies the figures to docs/pictures/studies and writes the machine, the answers and the figures between the marks of
docs/studies/<series>.md.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
_BEGIN, _END = "<!-- measured -->", "<!-- end of what was measured -->"
_COLOURS = 64
"""Enough for lines, bars and text; a third of the size in a file."""


def show_series(folder: Path, docs: Path = DOCS) -> Path:
    """Writes the page of a series; returns it. The folder's name is that of the series."""
    page = docs / "studies" / f"{folder.name}.md"
    text = page.read_text(encoding="utf-8")
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    measured = "\n".join(_measured((folder / "report.md").read_text(encoding="utf-8"), folder.name))
    page.write_text(f"{text[:begin]}\n\n{measured}\n\n{text[end:]}", encoding="utf-8")
    pictures = docs / "pictures" / "studies"
    pictures.mkdir(parents=True, exist_ok=True)
    for name in _figures(measured):
        with Image.open(folder / "figures" / f"{name.removeprefix(f'{folder.name}-')}.png") as picture:
            small = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        small.save(pictures / f"{name}.png", optimize=True)
    return page


def _measured(report: str, series: str) -> Iterator[str]:
    """The machine, the conclusion, and each part with its sentences and figures."""
    head, *parts = report.split("\n## ")
    yield "## Measured here\n"
    paragraphs = [one for one in head.split("\n\n")[1:] if not one.startswith("- ")]
    yield "\n\n".join(one.strip().removeprefix("**").removesuffix("**") for one in paragraphs if one.strip())
    sentences = dict(re.findall(r"^- \*\*(.*?)\*\* (.*)$", head, re.MULTILINE))
    for part in parts:
        title, _, body = part.partition("\n")
        yield f"\n### {title}\n"
        if title in sentences:
            yield f"{sentences[title]}\n"
        for name, file in re.findall(r"!\[(.*?)\]\(figures/(.*?)\.png\)", body):
            yield f"![{name}](../pictures/studies/{series}-{file}.png)"


def _figures(text: str) -> list[str]:
    return re.findall(r"pictures/studies/(.*?)\.png\)", text)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        sys.stdout.write(f"{show_series(Path(given))}\n")
