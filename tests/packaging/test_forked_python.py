"""Commands that begin as copies do what commands that are started from nothing do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.forked_python import ForkedPython
from tests.waiting import HANG_S

# It waits for a question on its input.
WAITS = ("-m", "foretune.training.reload_check")


def ask(
    forked_python: ForkedPython, folder: Path, *command: str, given: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **forked_python.variables, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, timeout=HANG_S, check=False
    )


def lines(forked_python: ForkedPython) -> list[str]:
    return forked_python.log.read_text().splitlines()


@pytest.fixture(autouse=True)
def _can_fork() -> None:
    if not hasattr(os, "pidfd_open"):
        pytest.skip("processes are started from nothing here")


def test_it_works_in_the_folder_of_the_one_who_asks(forked_python: ForkedPython, tmp_path: Path) -> None:
    answer = ask(forked_python, tmp_path, "foretune", "init", "here.yaml", "--model", "flux.1-dev")
    assert answer.returncode == 0, answer
    assert "here.yaml" in answer.stdout
    assert (tmp_path / "here.yaml").is_file()
    assert int(lines(forked_python)[-1].split()[0]) > 0
    again = ask(forked_python, tmp_path, "foretune", "init", "here.yaml", "--model", "flux.1-dev")
    assert again.returncode == 2
    assert again.stderr.startswith("Error: ")


def test_an_exception_ends_it_as_it_ends_python(forked_python: ForkedPython, tmp_path: Path) -> None:
    answer = ask(forked_python, tmp_path, "python", *WAITS, given="{}")
    assert answer.returncode == 1
    assert answer.stderr.startswith("Traceback (most recent call last):\n")
    assert answer.stderr.endswith("\nKeyError: 'device'\n")


def test_help_is_the_same(forked_python: ForkedPython, tmp_path: Path) -> None:
    for arguments in (("-m", "foretune", "--help"), ("-m", "foretune.cli.main", "plan", "--help")):
        commands = ((str(forked_python.python), *arguments), (sys.executable, *arguments))
        forked, started = (ask(forked_python, tmp_path, *command) for command in commands)
        assert (forked.returncode, forked.stdout, forked.stderr) == (0, started.stdout, "")


def test_other_commands_are_left_to_python(forked_python: ForkedPython, tmp_path: Path) -> None:
    answer = ask(forked_python, tmp_path, "python", "-c", "import sys; print(sys.argv, 'torch' in sys.modules)", "x")
    assert answer.stdout == "['-c', 'x'] False\n"


def test_variables_that_are_read_at_the_start_start_a_process(forked_python: ForkedPython, tmp_path: Path) -> None:
    answer = ask(forked_python, tmp_path, "foretune", "--version", OMP_NUM_THREADS="7")
    assert answer.stdout.startswith("foretune ")
    assert lines(forked_python)[-1].startswith("refused: OMP_NUM_THREADS ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_arrive(number: signal.Signals, forked_python: ForkedPython, tmp_path: Path) -> None:
    num_before = len(lines(forked_python))
    process = subprocess.Popen(
        [str(forked_python.python), *WAITS],
        cwd=tmp_path,
        env={**os.environ, **forked_python.variables},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(lines(forked_python)) > num_before)
    pid = int(lines(forked_python)[-1].split()[0])
    # A signal between Python's last look for one and the call in which it waits is seen only after that call, here and
    # in every program; so it is sent until it is seen. It is passed on: an input that ended now could be seen first.
    end_s = time.monotonic() + HANG_S
    while process.poll() is None:
        assert time.monotonic() < end_s
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
    _, errors = process.communicate()
    assert process.returncode == -number, errors
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)
