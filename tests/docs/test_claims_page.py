"""The page on claims shows what its commands print now."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import environment

TEXT = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```bash\n(.*?)^```\n\n```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_each_command_is_followed_by_what_it_prints() -> None:
    assert len(SHOWN) == TEXT.count("```bash") == 4


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=lambda text: text.split("--on")[-1].split()[0])
def test_tables_are_what_is_printed(command: str, shown: str, tmp_path: Path) -> None:
    # Of two commands in a block the first one's output is shown.
    _, *arguments = shlex.split(command.replace("\\\n", " ").splitlines()[0])
    answer = subprocess.run(
        [sys.executable, "-m", "foretune", *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    printed = {" ".join(line.split()) for line in answer.stdout.splitlines()}
    for line in shown.splitlines():
        assert " ".join(line.split()) in printed | {""}, f"{line}\nis not printed now:\n{answer.stdout}"
