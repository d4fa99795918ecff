"""The page on watching: its commands run, and what it says of reading is what is read."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from foretune.analyse.watching import watched_run
from foretune.cli.main import main
from foretune.record.event_tail import TAIL_BYTES
from foretune.reports.watch_words import HEADINGS
from tests.analyse.made_runs import make_run

PAGE = (Path(__file__).parents[2] / "docs" / "watching.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "a", [0.1])
    arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "1 of 1 run ended (1 finished)" in capsys.readouterr().out
    assert ("--html" in arguments) == (tmp_path / "watch.html").is_file()


def test_figures_are_those_of_the_program() -> None:
    assert f"at most {TAIL_BYTES // 2**10} KiB of the log" in PAGE
    assert f"({watched_run._FURTHER_BYTES // 2**20} MiB if" in PAGE
    assert watched_run.SILENT_AFTER_S == 60.0
    heading = next(line for line in PAGE.splitlines() if line.startswith("run  "))
    assert heading.split() == " ".join(HEADINGS).split()
