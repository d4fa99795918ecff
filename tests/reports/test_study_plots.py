"""Studies as pictures."""

import sys
from pathlib import Path
from typing import Any

import pytest

from foretune.core.errors import MissingExtra
from foretune.reports.study_plots import write_study_plots

pytest.importorskip("matplotlib")


def study(**changes: Any) -> dict[str, Any]:
    def one(value: float | None) -> dict[str, float | None]:
        return {"value": value, "low": None if value is None else 0.9 * value, "high": None}

    points = [
        {"label": f"batch {size}", "x": size, "values": {"step_ms": one(10.0 * size), "memory": one(None)}}
        for size in (1, 2, 4)
    ]
    axes = [{"key": "step_ms", "title": "step time, ms"}, {"key": "memory", "title": "memory, MiB"}]
    named = {"title": "A planted study", "setting": "batch size", "is_line": True, "is_sideways": False}
    return {**named, "axes": axes, "points": points, **changes}


@pytest.mark.parametrize("form", [{}, {"is_line": False}, {"is_sideways": True, "is_line": False}])
def test_every_form_is_drawn(form: dict[str, Any], tmp_path: Path) -> None:
    svg, png = write_study_plots(study(**form), tmp_path)
    text = svg.read_text()
    for word in ("A planted study", "step time, ms", "memory, MiB"):
        assert word in text
    assert png.read_bytes().startswith(b"\x89PNG")
    assert max(svg.stat().st_size, png.stat().st_size) < 100_000
    again = tmp_path / "again"
    again.mkdir()
    assert write_study_plots(study(**form), again)[0].read_text() == text


def test_what_was_not_steady_is_said(tmp_path: Path) -> None:
    svg, _ = write_study_plots(study(is_line=False), tmp_path)
    assert svg.read_text().count("not steady") == 3


def test_without_the_extra_the_install_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="plots"):
        write_study_plots(study(), tmp_path)
