"""Writes the tables of docs/exporting.md from the table that the export uses: `python -m tests.docs.exporting_page`."""

import re
from pathlib import Path

from foretune.catalog import TRAINABLE
from foretune.catalog.tool_names import adapter_form, single_file, why_no_adapter, why_no_single_file
from foretune.choices.method import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "exporting.md"
_PART = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = [kind for kind in METHODS if kind != "full"]


def written(page: str) -> str:
    """The page with its tables filled in."""
    return _PART.sub(lambda found: f"{found[1]}{_PARTS[found[2]]()}\n{found[3]}", page)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _adapters() -> str:
    lines = [_row("family", "format", *(f"`{kind}`" for kind in KINDS)), "|---|---|" + "---|" * len(KINDS)]
    for family in TRAINABLE:
        for file_format in ("comfyui", "kohya"):
            form = adapter_form(family, file_format)
            if form is not None:
                cells = ["yes" if why_no_adapter(family, kind, file_format) is None else "no" for kind in KINDS]
                lines.append(_row(f"`{family}`", f"`{file_format}` ({form.program})", *cells))
    return "\n".join(lines)


def _names() -> str:
    lines = [_row("family", "format", "names of layers", "layers"), "|---|---|---|---|"]
    for family in TRAINABLE:
        for file_format in ("comfyui", "kohya"):
            form = adapter_form(family, file_format)
            if form is not None:
                names = f"`{form.prefix}`, then {'original' if form.is_original else 'diffusers'} names"
                layers = ", ".join(f"`{piece.removeprefix('*')}`" for piece in form.only) or "all"
                lines.append(_row(f"`{family}`", f"`{file_format}`", names, layers))
    return "\n".join(lines)


def _whole() -> str:
    lines = [_row("family", "in the file", "folder in `ComfyUI/models`", "condition"), "|---|---|---|---|"]
    for family in TRAINABLE:
        form = single_file(family)
        if form is not None:
            parts = ", ".join(f"`{part}`" for part in form.parts)
            sizes = ", ".join(f"`{key}` {size}" for key, size in form.sizes.items())
            lines.append(_row(f"`{family}`", parts, f"`{form.folder}`", sizes or "-"))
        else:
            assert why_no_single_file(family)
    return "\n".join(lines)


_PARTS = {"adapters": _adapters, "names": _names, "whole": _whole}

if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
