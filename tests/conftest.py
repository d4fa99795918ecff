"""What every test shares: an offline environment, the size of proofs and their figures, GPU tests skipped."""

import atexit
import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

import pytest

FIGURE = "foretune-figure"


def _prepare_environment() -> None:
    """Set before anything imports torch or a hub client, which read these variables once."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ[variable] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is for what a shell without job control starts in the background; tests interrupt what they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The workers already fill the cores; more threads in each only wait for one another.
        os.environ["OMP_NUM_THREADS"] = "1"
    else:
        # The user's own cache must not decide a test. Workers inherit this directory from the controller.
        os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="foretune-hf-home-")
        atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)


_prepare_environment()


class ProofSize(Protocol):
    """Chooses between the full size of a proof and the tenth that CI runs."""

    def __call__(self, full: int, tenth: int) -> int:
        """Return the size for this run."""


@pytest.fixture(scope="module", autouse=True)
def _what_is_old_is_not_searched_again() -> None:
    """A run collects garbage several times; what libraries and earlier tests keep would be looked through each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def proof_size() -> ProofSize:
    """`proof_size(20, 2)` is 20 with FORETUNE_PROOFS=full, otherwise 2."""

    def choose(full: int, tenth: int) -> int:
        return full if os.environ.get("FORETUNE_PROOFS") == "full" else tenth

    return choose


def lacking(what: str) -> NoReturn:
    """A test cannot run without this. Skips it; fails it where CI runs, which would otherwise pass without it."""
    if os.environ.get("CI") or os.environ.get("FORETUNE_NO_SKIPS"):
        pytest.fail(f"CI needs {what}", pytrace=False)
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="session")
def chromium() -> None:
    """For tests that look at a page as a browser shows it."""
    if shutil.which("chromium") is None:
        lacking("the chromium browser: apt-get install chromium")


@pytest.fixture
def report_figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """`report_figure("20 kills, 20 resumes bit-exact")` shows that line at the end of the run.

    The line travels on the test's report, so it arrives from xdist workers too.
    """

    def report(text: str) -> None:
        request.node.user_properties.append((FIGURE, text))

    return report


@pytest.fixture(scope="session")
def tiny_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_pipeline("flux", "schnell")` is a directory with that pipeline at seed 0, for reading only."""
    written: dict[tuple[str, str | None], Path] = {}

    def write(family: str, variant: str | None = None) -> Path:
        from foretune.models.tiny import write_tiny_pipeline

        key = (family, variant)
        if key not in written:
            directory = tmp_path_factory.mktemp(f"tiny-{family}-{variant}")
            written[key] = write_tiny_pipeline(family, directory, variant=variant)
        return written[key]

    return write


class FigureSummary:
    """Collects the figures of all tests, in this process or in workers, and prints them once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the figures at teardown: it comes last and comes always, with all figures of the test."""
        if report.when == "teardown":
            self.lines += [f"{report.nodeid}: {text}" for name, text in report.user_properties if name == FIGURE]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the figures, or nothing if there are none."""
        if self.lines:
            size = "full size" if os.environ.get("FORETUNE_PROOFS") == "full" else "a tenth of full size"
            terminalreporter.section(f"figures (proofs at {size})")
            for line in sorted(self.lines):
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Register the summary; workers have no terminal, but the hooks do no harm there."""
    config.pluginmanager.register(FigureSummary(), "foretune-figure-summary")


def _why_no_gpu() -> str | None:
    """The reason to skip GPU tests, or None. Imports torch, so it is asked only if there is a GPU test."""
    if os.environ.get("SKIP_GPU_TESTS") == "1":
        return "SKIP_GPU_TESTS=1"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA device"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none. It is last, so that deselected tests import nothing."""
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if gpu_tests else None
    if reason is not None:
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))
