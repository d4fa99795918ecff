"""The reference of the Python API is that of the package, and the examples of docs/python.md run."""

import re
from pathlib import Path

import pytest

import foretune
from tests.docs.api_page import PAGE, page

EXAMPLES = PAGE.with_name("python.md")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_reference_is_that_of_the_package() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python -m tests.docs.api_page"


def test_every_public_name_has_an_entry_with_a_sentence() -> None:
    entries = re.split(r"^### `(\w+)`$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = dict(zip(entries[1::2], entries[2::2], strict=True))
    assert sorted(texts) == sorted(foretune.__all__)
    assert [
        name for name, text in texts.items() if not re.search(r"^(?!Parameters:|Raises:)[A-Z]", text, re.MULTILINE)
    ] == []


def test_the_examples_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    blocks = _BLOCK.findall(EXAMPLES.read_text(encoding="utf-8"))
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, str(EXAMPLES), "exec"), scope)  # noqa: S102 - our own page
    assert (tmp_path / "report.html").is_file()
