"""The page on comparing: its commands run on runs that a test made, and its figures are those of the program."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from foretune.analyse.gating import EXIT_CODES
from foretune.cli.main import main
from foretune.stats.deciding import DECIDING_CONFIDENCE, SMALLEST_DIFFERENCE
from tests.analyse.made_runs import make_repeats

PAGE = (Path(__file__).parents[2] / "docs" / "comparing.md").read_text(encoding="utf-8")
STATISTICS = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("baseline", "candidate"):
        make_repeats(tmp_path / name, (0.100, 0.101, 0.099, 0.100, 0.102))
    arguments = shlex.split(command)
    if "--run" in arguments:
        # Training is for other tests; that the verb has these options is for this one.
        arguments = [argument for argument in arguments if argument.startswith("--")]
        monkeypatch.setattr(sys, "argv", ["foretune", "compare", "--help"])
    else:
        monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    written = capsys.readouterr().out
    if "--run" in arguments:
        assert all(argument in written for argument in arguments)
    else:
        assert "runs" in written


def test_figures_are_those_of_the_program() -> None:
    assert f"at {DECIDING_CONFIDENCE:.0%}".replace("%", " %") in STATISTICS
    assert f"a difference of {SMALLEST_DIFFERENCE:.0%} or more".replace("%", " %") in PAGE
    codes = {int(code) for code in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)}
    assert codes == {*EXIT_CODES.values(), 2}
