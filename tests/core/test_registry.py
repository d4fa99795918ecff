"""The registry imports what is asked for, when it is asked for."""

import sys
from pathlib import Path

import pytest

from foretune.core.errors import UnknownName
from foretune.core.registry import Registry

PLANTED = "planted_for_the_registry"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[str]:
    """Two names in a module that says when it is imported, and one whose module is not there."""
    (tmp_path / f"{PLANTED}.py").write_text("ROUND = 'a circle'\nSQUARE = 'a square'\nclass In:\n    SIDE = 'inner'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, PLANTED, raising=False)
    return Registry(
        "shape", {"round": f"{PLANTED}:ROUND", "square": f"{PLANTED}:SQUARE", "absent": "not_there_at_all:X"}
    )


def test_listing_the_names_imports_nothing(registry: Registry[str]) -> None:
    assert list(registry) == ["round", "square", "absent"]
    assert len(registry) == 3
    assert "round" in registry
    assert "oval" not in registry
    assert PLANTED not in sys.modules


def test_asking_imports_once(registry: Registry[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry["round"] == "a circle"
    assert PLANTED in sys.modules
    monkeypatch.setattr(sys.modules[PLANTED], "ROUND", "something else")
    assert registry["round"] == "a circle"


def test_an_unknown_name_is_answered_with_the_nearest(registry: Registry[str]) -> None:
    with pytest.raises(UnknownName, match=r"There is no shape named 'rond'\. Did you mean 'round'\?"):
        registry["rond"]
    assert PLANTED not in sys.modules


def test_what_cannot_be_imported_is_not_hidden(registry: Registry[str]) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        registry["absent"]
