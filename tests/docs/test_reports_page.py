"""The page on reports: its commands run on runs that a test made, and its figures are those of the program."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from foretune.cli.main import main
from foretune.reports.pictures import MOST_BYTES
from foretune.reports.run_figures import MOST_CURVES
from tests.reports.whole_runs import two_configurations

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    two_configurations(tmp_path / "runs", num_seeds=2)
    arguments = shlex.split(command)
    is_listed = {"--where", "--summary"} & set(arguments)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    answer = capsys.readouterr().out
    assert "report.html" in answer or is_listed
    assert "owner/tiny" in answer or "-o" in arguments or "--columns" in arguments
    assert answer.count("\n") > 1, "each of these commands finds runs"
    named = [argument for argument in arguments if argument.endswith((".html", ".md", ".csv"))]
    assert all((tmp_path / name).stat().st_size > 200 for name in named)


def test_figures_are_those_of_the_program() -> None:
    assert f"{MOST_BYTES // 2**20} MiB of pictures" in PAGE
    assert f"the losses of {MOST_CURVES} configurations" in PAGE
