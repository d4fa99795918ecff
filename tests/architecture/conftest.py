"""Plants a small package that breaks a rule: the control of each test."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.architecture.source_tree import Plant


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """`plant({"core/a.py": "import torch"})` writes that package and returns its source folder."""

    def write(files: Mapping[str, str]) -> Path:
        source = tmp_path / "src"
        for name, text in {"__init__.py": "", **files}.items():
            path = source / "foretune" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return source

    return write
