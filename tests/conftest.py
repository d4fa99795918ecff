"""What every test shares: an offline environment, the size of proofs and their figures, GPU tests skipped, slow tests
first.
"""

import atexit
import fcntl
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import hypothesis
import pytest

from tests import slow_tests, turns

if TYPE_CHECKING:
    from foretune.trace.operator_memo import OperatorMemo
    from tests.forked_python import ForkedPython

FIGURE = "foretune-figure"
SLOW_TESTS = Path(__file__).with_name("slow_tests.json")
"""Seconds of the tests that take long; `pytest --store-slow-tests` writes it."""


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
        # Workers must collect the same tests, also when midnight passes between them.
        # Imported here: a copy of this file is tested on its own.
        if importlib.util.find_spec("tests") is not None:
            from tests.proofs.rotation import VARIABLE, turn

            os.environ[VARIABLE] = str(turn())


_prepare_environment()
# The default of 200 ms for an example is wall time.
hypothesis.settings.register_profile("foretune", deadline=None)
hypothesis.settings.load_profile("foretune")


class ProofSize(Protocol):
    """Chooses between the full size of a proof and the tenth that CI runs."""

    def __call__(self, full: int, tenth: int) -> int:
        """Return the size for this run."""


_FEW_MODULES = 50


class _Frozen:
    """What the garbage collector no longer looks through."""

    num_modules = 0

    @classmethod
    def renew(cls) -> None:
        gc.collect()
        gc.freeze()
        cls.num_modules = len(sys.modules)


@pytest.fixture(scope="module", autouse=True)
def _what_is_old_is_not_searched_again() -> None:
    """A run collects garbage several times; what libraries and earlier tests keep would be looked through each time.

    Between these times it is looked for seldom: a plan makes hundreds of thousands of objects that all stay.
    """
    gc.set_threshold(50_000, 20, 20)
    gc.enable()  # `foretune plan` turns it off for its process, which here is that of all tests
    _Frozen.renew()


@pytest.fixture(autouse=True)
def _what_was_imported_is_not_searched_again(_what_is_old_is_not_searched_again: None) -> None:
    """The first test of a file may import diffusers, of which the others would look through 500,000 objects."""
    if len(sys.modules) > _Frozen.num_modules + _FEW_MODULES:
        _Frozen.renew()


@pytest.fixture(scope="session")
def proof_size() -> ProofSize:
    """`proof_size(20, 2)` is 20 with FORETUNE_PROOFS=full, otherwise 2."""

    def choose(full: int, tenth: int) -> int:
        return full if os.environ.get("FORETUNE_PROOFS") == "full" else tenth

    return choose


class ComputedOnce(Protocol):
    """Computes what several tests look at, and several workers would otherwise compute at the same time."""

    def __call__(self, name: str, compute: Callable[[], str]) -> str:
        """The text that `compute` gave to the first worker that asked; the others wait for it and read it."""


@pytest.fixture(scope="session")
def computed_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ComputedOnce:
    """`computed_once("backtest", lambda: score.to_json())`, once in a run of pytest."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent  # each worker has a folder of its own below the run's

    def once(name: str, compute: Callable[[], str]) -> str:
        path = folder / f"{name}.json"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                unfinished = path.with_suffix(".unfinished")
                unfinished.write_text(compute(), encoding="utf-8")
                unfinished.replace(path)
        return path.read_text(encoding="utf-8")

    return once


@pytest.fixture(scope="session")
def operator_memo() -> "OperatorMemo":
    """What operators on fake tensors give, for all recordings of a worker."""
    from foretune.trace.operator_memo import OperatorMemo

    return OperatorMemo()


@pytest.fixture(scope="module")
def operators_are_remembered(operator_memo: "OperatorMemo") -> Iterator[None]:
    """Recordings take half as long where others before had the same operators on the same shapes.

    That a remembered operator gives what torch gives is tested in `trace/test_operator_memo.py`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretune.trace.tracing.OperatorMemo", lambda: operator_memo)
        yield


@pytest.fixture(scope="session")
def forked_python() -> Iterator["ForkedPython"]:
    """`python` and `foretune` as commands that need no seconds for their imports."""
    from tests.forked_python import ForkedPython

    with ForkedPython() as commands:
        yield commands


@pytest.fixture
def processes_begin_at_once(forked_python: "ForkedPython", monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what processes do that Foretune starts, not of how they start."""
    monkeypatch.setattr(sys, "executable", str(forked_python.python))


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


@pytest.fixture(scope="session")
def namespaces() -> None:
    """For tests whose hosts are network namespaces."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("hosts of their own take root and namespaces")
    if shutil.which("ip") is None:
        lacking("network namespaces: apt-get install iproute2")


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option of our own."""
    text = f"note the tests that took at least {slow_tests.LEAST_STORED_S} s in {SLOW_TESTS.name}, which orders runs"
    parser.addoption(slow_tests.OPTION, action="store_true", help=text)


def pytest_report_header() -> str:
    """Says which tests do not run today."""
    return turns.header()


def pytest_configure(config: pytest.Config) -> None:
    """Register the summaries; workers have no terminal, but the hooks do no harm there."""
    config.pluginmanager.register(FigureSummary(), "foretune-figure-summary")
    config.pluginmanager.register(slow_tests.SlowTests(config, SLOW_TESTS), "foretune-slow-tests")


def _why_no_gpu() -> str | None:
    """The reason to skip GPU tests, or None. Imports torch, so it is asked only if there is a GPU test."""
    if os.environ.get("SKIP_GPU_TESTS") == "1":
        return "SKIP_GPU_TESTS=1"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA device"


def _why_no_real_gpu() -> str | None:
    return "this cannot be simulated" if os.environ.get("SIMACCEL") else _why_no_gpu()


def _why_no_simulated_gpu() -> str | None:
    """The reason to skip tests of the simulated GPU; torch loads it if this variable is set before its import."""
    if not os.environ.get("SIMACCEL"):
        return "SIMACCEL is not set: see simaccel/README.md"
    return _why_no_gpu()


def _why_no_simulated_mps() -> str | None:
    return None if os.environ.get("SIMACCEL") == "mps" else "SIMACCEL is not mps: see simaccel/README.md"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none. It is last, so that deselected tests import nothing."""
    seconds = slow_tests.read_seconds(SLOW_TESTS)
    turns.deselect(config, items, seconds)
    items[:] = slow_tests.slow_first(items, getattr(config, "workerinput", {}).get("workercount", 1), seconds)
    _skip(items, "gpu", _why_no_gpu)
    _skip(items, "real_gpu", _why_no_real_gpu)
    _skip(items, "simulated", _why_no_simulated_gpu)
    _skip(items, "simulated_mps", _why_no_simulated_mps)


def _skip(items: Sequence[pytest.Item], marker: str, why_not: Callable[[], str | None]) -> None:
    """Skip the tests with a marker if there is a reason to; without such tests, nothing is asked."""
    marked = [item for item in items if item.get_closest_marker(marker)]
    reason = why_not() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
