"""The command line, in this process where that is enough and in one of its own where it is not."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from foretune.cli.main import main
from tests.waiting import HANG_S

PROGRAM = (sys.executable, "-m", "foretune")
# What a tester's own terminal may say about colours and width.
_TERMINAL = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")


@dataclass(frozen=True)
class Answer:
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


class Foretune(Protocol):
    """Types `foretune` with arguments in a new directory."""

    def __call__(self, *arguments: str) -> Answer:
        """Run it to its end."""


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that is started here."""
    return {**{name: value for name, value in os.environ.items() if name not in _TERMINAL}, **variables}


@pytest.fixture
def foretune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Foretune:
    """Runs the entry point in this process: quick, but what it imports and how it starts is not checked."""
    monkeypatch.chdir(tmp_path)
    for name in _TERMINAL:
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("TOKENIZERS_PARALLELISM", "1"),
        ("OMP_WAIT_POLICY", "PASSIVE"),
    ):
        monkeypatch.setenv(name, os.environ.get(name, value))  # the program sets these; they are put back afterwards

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["foretune", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        written = capsys.readouterr()
        code = end.value.code
        assert code is None or isinstance(code, int)
        return Answer(code or 0, written.out, written.err)

    return run


@pytest.fixture
def foretune_process(tmp_path: Path) -> Foretune:
    """Runs the program as a shell would."""

    def run(*arguments: str) -> Answer:
        ran = subprocess.run(
            [*PROGRAM, *arguments],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        return Answer(ran.returncode, ran.stdout, ran.stderr)

    return run
