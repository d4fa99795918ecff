"""The example notebook runs from top to bottom in a fresh kernel, and shows what its text promises."""

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


@pytest.mark.takes_turns
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    text = (ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8")
    notebook: Any = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    client = NotebookClient(notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    shown = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    plans = _output(shown, "plans = ft.plan")
    assert "<table" in plans["text/html"]
    assert "Does not fit on RTX 4090." in plans["text/html"]
    assert _output(shown, "[remedy.settings")["text/plain"].startswith("[{'quantize.denoiser'")
    assert _output(shown, "class Losses")["text/plain"] == "(20, 'finished', 'finished')"
    assert "Finished 20 steps" in _output(shown, "first")["text/html"]
    assert _output(shown, "ft.report(")["text/html"].startswith("<iframe")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def _output(shown: dict[str, Any], beginning: str) -> dict[str, str]:
    """What the last expression of a cell showed."""
    (outputs,) = [found for source, found in shown.items() if source.startswith(beginning)]
    (result,) = [output for output in outputs if output.output_type == "execute_result"]
    data: dict[str, str] = result["data"]
    return data
