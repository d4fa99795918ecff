"""OpenMP threads sleep while they wait in every process that Foretune starts, and nowhere else."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretune
from foretune.core import thread_waiting
from foretune.core.thread_waiting import WAITING_VARIABLES, wait_passively, with_passive_waiting

SOURCES = Path(foretune.__file__).parent
SHOW = "import os; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"


def shown_by(code: str, **variables: str) -> str:
    """What a new process prints whose environment says nothing else about waiting."""
    environment = {name: value for name, value in os.environ.items() if name not in WAITING_VARIABLES}
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, capture_output=True, text=True, check=True
    )
    return ran.stdout.splitlines()[-1]


def test_nothing_set_becomes_passive() -> None:
    assert with_passive_waiting({"PATH": "/bin"}) == {"PATH": "/bin", "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize("name", WAITING_VARIABLES)
def test_what_the_user_set_is_kept(name: str) -> None:
    asked = {name: "ACTIVE" if name == "OMP_WAIT_POLICY" else "7"}
    assert with_passive_waiting(asked) == asked


def test_importing_the_library_changes_nothing() -> None:
    code = "import foretune, foretune.core.thread_waiting, foretune.measure.fresh_process, foretune.training.train"
    assert shown_by(f"{code}; {SHOW}") == "None None"


COMMAND = (
    "import sys\n"
    "from foretune.cli.main import main\n"
    "sys.argv = ['foretune', '--version']\n"
    "try:\n"
    "    main()\n"
    "except SystemExit:\n"
    "    pass\n"
)


def test_the_command_line_waits_passively() -> None:
    assert shown_by(COMMAND + SHOW) == "PASSIVE None"
    assert shown_by(COMMAND + SHOW, OMP_WAIT_POLICY="ACTIVE") == "ACTIVE None"
    assert shown_by(COMMAND + SHOW, GOMP_SPINCOUNT="100") == "None 100"


def test_the_fingerprint_names_no_policy_that_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's runtime has read its variables when torch is imported."""
    for name in WAITING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(thread_waiting.sys.modules, "torch", object())  # type: ignore[attr-defined]
    wait_passively()
    assert "OMP_WAIT_POLICY" not in os.environ


def calls_that_start_processes() -> list[tuple[str, ast.Call]]:
    return [
        (f"{path.relative_to(SOURCES)}:{node.lineno}", node)
        for room in ("training", "measure", "quality", "studies", "checkup")
        for path in sorted((SOURCES / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run")
    ]


def test_every_process_that_is_started_waits_passively() -> None:
    calls = calls_that_start_processes()
    assert len(calls) >= 4, "a fresh process, the clean process of an export, collectives, a sensor"
    for place, call in calls:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        source = (SOURCES / place.partition(":")[0]).read_text(encoding="utf-8")
        passed = given.get("env", "")
        made_before = f"{passed} = with_passive_waiting(" in source
        assert passed.startswith("with_passive_waiting(") or made_before, f"{place}: env={passed or 'inherited'}"
