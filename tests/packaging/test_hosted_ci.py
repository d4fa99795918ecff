"""The workflows, the action and the scripts behind them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).parents[2]
_WORKFLOWS = sorted((_ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_the_checks_with_no_more_rights_than_it_needs(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    commands = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert any("bash .ci/run" in command for command in commands)
    for script in re.findall(r"\.ci/\w+", "\n".join(commands)):
        assert (_ROOT / script).is_file()
    # What others write (titles, branches) never becomes part of a script.
    assert not any("${{" in command for command in commands)


def test_only_the_job_that_publishes_gets_a_token() -> None:
    jobs = read(_ROOT / ".github" / "workflows" / "publish.yml")["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert "run" not in " ".join(key for step in jobs["publish"]["steps"] for key in step)
    assert jobs["publish"]["needs"] == "build"


def action(tmp_path: Path, code: int = 0, **inputs: str) -> tuple[str, str]:
    """Runs the action's step as the hosted CI would; returns its output and the job's summary."""
    step = read(_ROOT / "action.yml")["runs"]["steps"][-1]
    names = {key: re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value).group(1) for key, value in step["env"].items()}  # type: ignore[union-attr]
    command = tmp_path / "bin" / "foretune"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m foretune.cli.main "$@"\n')
    command.chmod(0o755)
    summary = tmp_path / "summary.md"
    finished = subprocess.run(
        ["bash", "-c", step["run"]],
        cwd=tmp_path,
        env={
            **os.environ,
            **{key: inputs.get(name, "") for key, name in names.items()},
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(_ROOT / "src"),
            "GITHUB_ACTION_PATH": str(_ROOT),
            "GITHUB_STEP_SUMMARY": str(summary),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == code, finished.stderr
    return finished.stdout + finished.stderr, summary.read_text() if summary.exists() else ""


def test_the_action_adds_a_plan_to_the_summary(tmp_path: Path) -> None:
    output, summary = action(tmp_path, plan="flux.1-dev method.kind=lora --on rtx-4090")
    assert "Does not fit on rtx-4090" in output
    assert summary.startswith("### foretune plan\n\n```text\n")
    assert "Does not fit on rtx-4090" in summary


def test_the_action_fails_as_the_gate_fails(tmp_path: Path) -> None:
    output, summary = action(tmp_path, code=2, gate="absent-1 absent-2")
    assert "absent-1" in output
    assert "### foretune gate" in summary


def test_inputs_of_the_action_are_words_not_commands(tmp_path: Path) -> None:
    action(tmp_path, code=2, plan="$(touch escaped) ; touch escaped ; `touch escaped` *")
    assert not (tmp_path / "escaped").exists()


def test_the_action_wants_something_to_do(tmp_path: Path) -> None:
    assert "give the input plan or gate" in action(tmp_path, code=2)[0]


def release(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ".ci/release", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip


def test_a_release_with_another_tag_is_refused() -> None:
    refused = release("v99.0.0")
    assert refused.returncode == 1
    assert "the tag is v99.0.0" in refused.stderr


def test_a_release_without_a_changelog_is_refused(tmp_path: Path) -> None:
    """In a copy of what the script reads before it builds."""
    for name in (".ci/release", "src/foretune/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((_ROOT / name).read_bytes())
    (tmp_path / "src/foretune/__init__.py").write_text('__version__ = "7.8.9"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    command = ["bash", str(tmp_path / ".ci/release"), "v7.8.9"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "CHANGELOG.md has no section for 7.8.9" in refused.stderr
