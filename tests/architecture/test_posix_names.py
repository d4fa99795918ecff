"""The package imports and trains on Windows: what Windows lacks is used only where the system was asked for first."""

import pytest

from tests.architecture.posix_names import NOT_ON_WINDOWS, posix_names, windows_lacks
from tests.architecture.source_tree import SOURCE, Plant


def test_names_that_windows_lacks_are_used_only_elsewhere() -> None:
    assert posix_names(SOURCE) == []


def test_every_exception_is_needed() -> None:
    found = {violation.partition(":")[0] for violation in posix_names(SOURCE, frozenset())}
    assert found == set(NOT_ON_WINDOWS)


def test_stubs_list_what_windows_lacks() -> None:
    names, modules = windows_lacks()
    assert {"signal.SIGKILL", "signal.SIGHUP", "os.mkfifo", "os.fork", "os.killpg", "os.sysconf"} <= names
    assert names.isdisjoint(
        {"signal.SIGTERM", "os.open", "os.O_RDONLY", "os.kill", "os.getpid", "sys.getwindowsversion"}
    )
    assert {"fcntl", "resource", "pwd", "termios"} <= modules
    assert modules.isdisjoint({"os", "signal", "json", "msvcrt"})


@pytest.mark.parametrize(
    "text",
    [
        "import signal\nHARD = signal.SIGKILL",
        "import os\ndef f():\n    os.mkfifo('pipe')",
        "def f():\n    import fcntl",
        "from resource import getrlimit",
        "import os\ndef f():\n    if os.name == 'nt':\n        return\n    def g():\n        os.fork()",
    ],
)
def test_control_posix_only(plant: Plant, text: str) -> None:
    violations = posix_names(plant({"run/a.py": text}))
    assert violations
    assert all(violation.startswith("src/foretune/run/a.py:") for violation in violations)


def test_control_asked_first(plant: Plant) -> None:
    text = """
import os
import signal
import sys

STOP = signal.SIGTERM


def f():
    if sys.platform != "win32":
        os.killpg(1, signal.SIGKILL)
"""
    assert posix_names(plant({"run/a.py": text})) == []
