"""S9: 120 names that want to become a command, wherever a name comes near a batch script."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from foretune.core.errors import UserError
from foretune.executors.executor import checked_options
from foretune.executors.slurm import SlurmExecutor
from foretune.executors.slurm_options import SlurmOptions
from foretune.executors.task import Task
from tests.conftest import ProofSize
from tests.executors import fake_slurm
from tests.executors.cluster_tasks import toy_task

pytestmark = pytest.mark.proof

_COMMANDS = ("touch owned", "touch${IFS}owned", ">owned", "cp $0 owned", "tee owned </dev/null", "env touch owned")
_SHAPES = (
    "x; {} ;",
    "x$({})",
    "x`{}`",
    "x\n{}\n",
    "x\r\n{}\r\n",
    "x'; {}; '",
    'x"; {}; "',
    "x & {} &",
    "x | {}",
    "x\n#SBATCH --wrap='{}'\n{}",
    "--wrap={}",
    "-p all --wrap '{}'",
    "%j$({})",
    "x\\\n{}\n",
    "<({})",
    "x && {}",
    "\n{} #",
    "'$({})'",
    "x\u2028{}\u2028",
    "x\x00{}",
)
_TEXT_OPTIONS = [field.name for field in fields(SlurmOptions) if "str" in str(field.type) and field.name != "setup"]


def hostile_names() -> list[str]:
    return [shape.replace("{}", command) for shape, command in product(_SHAPES, _COMMANDS)]


def num_owned(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("owned*"))


def is_refused(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except UserError:
        return True
    return False


def submitted(folder: Path, options: dict[str, Any]) -> None:
    """A task in this folder, through the whole executor to the script that a node would run."""
    executor = SlurmExecutor(checked_options("slurm", SlurmOptions, {"time": "10", **options}))
    executor.submit(toy_task(folder, "square", number=1))
    executor.close()


def test_s9_hostile_names_stay_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    names = hostile_names()
    assert len(names) == 120
    names = names[:: 120 // proof_size(120, 20)]
    slurm = fake_slurm.install(tmp_path / "slurm", monkeypatch)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    num_refused = num_passed = 0
    for number, name in enumerate(names):
        assert is_refused(lambda name=name: Task(name=name, worker="a", request={}, folder=work)), name  # type: ignore[misc]
        for option in _TEXT_OPTIONS:
            if option == "folder":
                continue
            assert is_refused(lambda option=option, name=name: submitted(work / "t", {option: name})), (option, name)  # type: ignore[misc]
            num_refused += 1
        # A folder may be called anything: either it is refused, or the script holds exactly this name.
        for place in ("task", "submitit"):
            path = work / f"{place}-{number}" / name.replace("/", "_")
            task_folder, options = (path, {}) if place == "task" else (work / f"plain-{number}", {"folder": str(path)})
            try:
                submitted(task_folder, options)
            except UserError:
                num_refused += 1
            else:
                assert str(path) in slurm.srun_arguments()[-1], "the name arrives whole, in one argument"
                num_passed += 1
    assert num_passed > 0, "names that only need quotes are not refused"
    report_figure(
        f"{len(names)} hostile names in {len(_TEXT_OPTIONS) + 2} places: {num_refused} refused, {num_passed} quoted, "
        f"{num_owned(work)} extra commands executed"
    )
    assert num_owned(tmp_path) == 0


def test_s9_control_a_script_without_quotes_is_owned(tmp_path: Path) -> None:
    scripts = [f"#!/bin/bash\n#SBATCH --job-name={name}\ntrue {name}\n" for name in hostile_names() if "\0" not in name]
    for number, script in enumerate(scripts):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "script.sh").write_text(script)
        subprocess.run(["bash", "script.sh"], cwd=folder, capture_output=True, check=False, env=dict(os.environ))
    assert num_owned(tmp_path) > len(scripts) / 2
