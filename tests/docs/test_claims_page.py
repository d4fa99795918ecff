"""The page on claims shows what its commands print now."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.forked_python import ForkedPython

TEXT = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```bash\n(.*?)^```\n\n```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_each_command_is_followed_by_what_it_prints() -> None:
    assert len(SHOWN) == TEXT.count("```bash") == 3


@pytest.mark.slow
@pytest.mark.parametrize(("script", "shown"), SHOWN, ids=lambda text: text.split("--on")[-1].split()[0])
def test_tables_are_what_is_printed(script: str, shown: str, tmp_path: Path, forked_python: ForkedPython) -> None:
    """Every command works; of two commands in a block the first one's output is shown."""
    answers = [
        subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env=environment(**forked_python.variables),
            capture_output=True,
            text=True,
            check=True,
        )
        for command in script.replace("\\\n", " ").splitlines()
    ]
    assert all("Traceback" not in answer.stderr for answer in answers)
    printed = {" ".join(line.split()) for line in answers[0].stdout.splitlines()}
    for line in shown.splitlines():
        assert " ".join(line.split()) in printed | {""}, f"{line}\nis not printed now:\n{answers[0].stdout}"
