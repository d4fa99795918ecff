"""What the command line does to its process, and the Python API does not."""

import gc

import pytest

from foretune.cli import own_process


def test_what_is_imported_is_exempt_from_garbage_collection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    own_process._freeze.cache_clear()
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(own_process, "quieten", lambda: calls.append("quieten"))
    own_process.imports_done()
    own_process.imports_done()
    assert calls == ["quieten", "freeze", "quieten"]
