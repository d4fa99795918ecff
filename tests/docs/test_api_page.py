"""docs/python.md: its reference is that of the package, and its examples run."""

import re
from pathlib import Path

import pytest

from tests.docs.api_page import PAGE, page

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_reference_is_that_of_the_package() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.docs.api_page"


def test_the_examples_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)  # noqa: S102 - our own page
    assert (tmp_path / "report.html").is_file()
