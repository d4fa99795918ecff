"""Colours are for terminals whose owner wants them."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Foretune, environment
from tests.waiting import HANG_S

ESCAPE = "\x1b"
COMMANDS = [
    ("--help",),
    ("list", "models"),
    ("list", "devices"),
    ("list", "methods"),
    ("train", "nowhere.yaml"),
    ("init", "x.yaml", "--model", "flux.1-schnell"),
    ("trian",),
]


def in_a_terminal(folder: Path, *arguments: str, **variables: str) -> str:
    """What the program writes where a person would see it."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=environment(TERM="xterm-256color", **variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as program:
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 65_536):
                written += chunk
        except OSError:
            pass  # how a terminal of this kind says that its program has ended
        program.wait(timeout=HANG_S)
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_files_and_pipes_get_plain_text(foretune_process: Foretune, arguments: tuple[str, ...]) -> None:
    answer = foretune_process(*arguments)
    assert answer.stdout + answer.stderr
    assert ESCAPE not in answer.stdout + answer.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_terminal_without_colours_gets_plain_text(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    written = in_a_terminal(tmp_path, *arguments, NO_COLOR="1")
    assert written
    assert ESCAPE not in written


def test_a_terminal_gets_colours(tmp_path: Path) -> None:
    assert f"{ESCAPE}[31mError: nowhere.yaml" in in_a_terminal(tmp_path, "train", "nowhere.yaml")
    assert f"{ESCAPE}[33mWarning: " in in_a_terminal(tmp_path, "init", "x.yaml", "-m", "flux.1-schnell")
    assert f"{ESCAPE}[1m" in in_a_terminal(tmp_path, "list", "methods")
