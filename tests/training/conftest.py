"""What tests of runs share: the proof of an export without the seconds that a clean process takes."""

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from foretune.training import exporting, reload_check


@pytest.fixture
def proof_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reloads here instead of in a clean process, which takes seconds; what is loaded is the same."""

    def run(command: list[str], input: str, **_: Any) -> subprocess.CompletedProcess[str]:  # noqa: A002 - its name there
        assert command[1:] == ["-m", "foretune.training.reload_check"]
        try:
            reload_check.check(json.loads(input))
        except Exception as error:  # noqa: BLE001 - a process ends with whatever it was
            return subprocess.CompletedProcess(command, 1, "", f"{type(error).__name__}: {error}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(exporting, "subprocess", SimpleNamespace(run=run))
