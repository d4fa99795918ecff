"""SLURM's commands as small scripts: they answer what files say, and run a batch script at once, on this machine."""

import os
from pathlib import Path

import pytest

_COMMANDS = {
    # What `sbatch` does with the script in the end, when a node is free.
    "sbatch": 'cp "$1" "{folder}/script.sh"; echo "Submitted batch job 7"; bash "$1" >>"{folder}/output" 2>&1; true',
    "srun": 'printf "%s\\0" "$@" >>"{folder}/srun"',
    "squeue": 'test ! -f "{folder}/squeue-fails" && cat "{folder}/squeue"',
    "sacct": 'test -f "{folder}/sacct" && cat "{folder}/sacct"',
    "scontrol": 'echo "MaxArraySize            = 4"',
    "scancel": 'echo "$@" >>"{folder}/scancel"',
}


class FakeSlurm:
    """What the commands answer, and what they were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue()

    def queue(self, *lines: str) -> None:
        """What squeue prints: array job, index and state."""
        (self.folder / "squeue").write_text("".join(f"{line}\n" for line in lines))

    def accounts(self, *lines: str) -> None:
        """What sacct prints; without this there is no accounting."""
        (self.folder / "sacct").write_text("".join(f"{line}\n" for line in lines))

    def does_not_answer(self, *, is_so: bool) -> None:
        path = self.folder / "squeue-fails"
        path.touch() if is_so else path.unlink()

    def srun_arguments(self) -> list[str]:
        path = self.folder / "srun"
        return path.read_text().split("\0")[:-1] if path.exists() else []

    def cancelled(self) -> list[str]:
        path = self.folder / "scancel"
        return path.read_text().split() if path.exists() else []


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    programs = folder / "programs"
    programs.mkdir(parents=True)
    for name, text in _COMMANDS.items():
        path = programs / name
        path.write_text(f"#!/bin/bash\n{text.replace('{folder}', str(folder))}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return FakeSlurm(folder)
