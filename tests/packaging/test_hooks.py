"""The hooks that run before a commit: their programs are installed with `dev`, and this tree passes them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_HOOKS: list[dict[str, Any]] = yaml.safe_load((_ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
_OWN_STAGES = ("ruff", "ruff-format", "mypy", "fast-tests")
"""Stages of .ci/run."""
_ENDINGS = {"yaml": (".yaml", ".yml"), "json": (".json",), "toml": (".toml",)}


def files_of(hook: dict[str, Any]) -> list[str]:
    """The tracked files that pre-commit would give to a hook."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    excluded = re.compile(hook.get("exclude", r"^$"))
    endings = tuple(ending for kind in hook.get("types", ()) for ending in _ENDINGS.get(kind, ()))
    chosen = [name for name in listed if name and (_ROOT / name).is_file() and not excluded.search(name)]
    chosen = [name for name in chosen if name.endswith(endings)] if endings else chosen
    if "text" in hook.get("types", ()):
        chosen = [name for name in chosen if b"\0" not in (_ROOT / name).read_bytes()[:8192]]
    return chosen


@pytest.mark.parametrize("hook", [one for one in _HOOKS if one["id"] not in _OWN_STAGES], ids=lambda one: one["id"])
def test_this_tree_passes_a_hook(hook: dict[str, Any]) -> None:
    program, *arguments = hook["entry"].split()
    names = files_of(hook) if hook.get("pass_filenames", True) else []
    assert names or not hook.get("pass_filenames", True)
    finished = subprocess.run(
        [str(_BIN / program), *arguments, *names], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "Fixing" not in finished.stdout


def test_a_hook_sees_a_mistake(tmp_path: Path) -> None:
    """The programs are the real ones."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("key: [1,\nother: }\n")
    (tmp_path / "space.txt").write_text("word \n")
    for program, name in (("check-yaml", "bad.yaml"), ("trailing-whitespace-fixer", "space.txt")):
        finished = subprocess.run([str(_BIN / program), name], cwd=tmp_path, capture_output=True, check=False)
        assert finished.returncode == 1


@pytest.mark.parametrize("hook", _HOOKS, ids=lambda one: one["id"])
def test_a_hook_runs_on_a_fresh_clone(hook: dict[str, Any]) -> None:
    """It installs its program at the version of the environment, or is not run without one."""
    if hook["id"] in ("mypy", "fast-tests"):
        assert hook["entry"].startswith(".ci/in-environment ")
        assert hook["verbose"]
        return
    (program,) = hook["additional_dependencies"]
    pinned = (_ROOT / "constraints" / "dev.txt").read_text().splitlines()
    assert program.replace("-", "_") in [line.replace("-", "_") for line in pinned]
    assert hook["language"] == "python"
    assert not hook["entry"].startswith(".")


def test_ruff_sees_python_files_that_have_another_ending() -> None:
    """pre-commit knows them by their first line, and gives them to ruff."""
    command = ["git", "grep", "-lIE", "^#!.*python", "--", ".", ":!*.py"]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False).stdout.split()
    named = [name for name in listed if (_ROOT / name).read_text(encoding="utf-8").partition("\n")[0].startswith("#!")]
    assert ".ci/audit" in named
    shown = subprocess.run([str(_BIN / "ruff"), "check", "--show-files"], cwd=_ROOT, capture_output=True, check=True)
    assert {str(_ROOT / name) for name in named} <= set(shown.stdout.decode().splitlines())


def test_what_needs_the_environment_says_that_there_is_none(tmp_path: Path) -> None:
    script = tmp_path / "clone" / ".ci" / "in-environment"
    script.parent.mkdir(parents=True)
    shutil.copy(_ROOT / ".ci" / "in-environment", script)

    def finished() -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(script), "program", "a b"], capture_output=True, text=True, check=False)

    without = finished()
    assert (without.returncode, without.stdout.partition("Run: ")[2]) == (0, "make setup\n")
    program = tmp_path / "clone" / ".venv" / "bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "got $1"\nexit 3\n')
    program.chmod(0o755)
    assert (finished().returncode, finished().stdout) == (3, "got a b\n")


def test_the_security_scan_runs_on_request_only() -> None:
    assert [hook["id"] for hook in _HOOKS if hook.get("stages") == ["manual"]] == ["security"]
