"""What the page about exports promises is what the export does."""

import re
from typing import get_args

from foretune.catalog import TRAINABLE
from foretune.catalog.tool_names import ExportFormat, adapter_form, single_file, why_no_adapter
from tests.docs.exporting_page import KINDS, PAGE, written


def test_the_tables_are_those_of_the_export() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) == {"adapters", "names", "whole"}
    assert text == written(text), "Run: python -m tests.docs.exporting_page"


def test_control_a_changed_cell_is_seen() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert written(text.replace("| yes |", "| no |", 1)) == text


def test_families_without_a_format_are_named_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = {f"`{family}`" for family in TRAINABLE if adapter_form(family, "comfyui") is None}
    assert missing == {"`ddpm`", "`lumina2`"}
    assert "`ddpm` and `lumina2`" in text
    assert {f"`--format {name}`" for name in get_args(ExportFormat)} <= set(re.findall(r"`--format [\w-]+`", text))
    assert any(single_file(family) is None for family in TRAINABLE)


def test_no_program_is_promised_oft() -> None:
    assert all(why_no_adapter(family, "oft", fmt) for family in TRAINABLE for fmt in ("comfyui", "kohya"))
    assert "oft" in KINDS
