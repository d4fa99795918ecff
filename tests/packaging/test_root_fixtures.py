"""The fixtures and hooks of the root conftest, tried in a pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT_CONFTEST = Path(__file__).parents[1] / "conftest.py"

TESTS = """
import sys
import pytest

def test_figure(proof_size, report_figure):
    report_figure(f"size {proof_size(20, 2)}")
    report_figure("second line")

def test_no_torch_yet():
    assert "torch" not in sys.modules
"""
GPU_TEST = """
import pytest

@pytest.mark.gpu
def test_on_gpu():
    raise AssertionError("must not run")
"""
LACKING_TEST = """
from conftest import lacking

def test_with_a_tool():
    lacking("a tool: apt-get install tool")

def test_in_a_browser(chromium):
    raise AssertionError("must not run")
"""


def run_pytest(directory: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    (directory / "conftest.py").write_text(ROOT_CONFTEST.read_text())
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs CUDA\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FORETUNE_", "CI"))}
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments]
    finished = subprocess.run(
        command, cwd=directory, env={**kept, **variables}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == code, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_figures_are_shown_once_with_and_without_workers(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    shown = run_pytest(tmp_path, "-n", workers)
    assert shown.count("test_planted.py::test_figure: size 2\n") == 1
    assert shown.count("test_planted.py::test_figure: second line\n") == 1
    assert "a tenth of full size" in shown


def test_proofs_at_full_size(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    shown = run_pytest(tmp_path, FORETUNE_PROOFS="full")
    assert "test_planted.py::test_figure: size 20\n" in shown
    assert "proofs at full size" in shown


def test_gpu_tests_are_skipped_on_request_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(GPU_TEST)
    (tmp_path / "test_zlast.py").write_text(TESTS)
    shown = run_pytest(tmp_path, SKIP_GPU_TESTS="1")
    assert "SKIP_GPU_TESTS=1" in shown
    assert "2 passed, 1 skipped" in shown


def test_what_cannot_run_is_skipped_and_fails_in_ci(tmp_path: Path) -> None:
    """Otherwise CI would pass without the proofs that need a browser or a tracer."""
    (tmp_path / "test_planted.py").write_text(LACKING_TEST)
    no_programs = str(tmp_path)
    shown = run_pytest(tmp_path, PATH=no_programs)
    assert "2 skipped" in shown
    assert "needs a tool: apt-get install tool" in shown
    for shown in (
        run_pytest(tmp_path, code=1, PATH=no_programs, CI="1"),
        run_pytest(tmp_path, code=1, PATH=no_programs, FORETUNE_NO_SKIPS="1"),
    ):
        assert "1 failed, 1 error" in shown
        assert "CI needs a tool: apt-get install tool" in shown
        assert "CI needs the chromium browser: apt-get install chromium" in shown
