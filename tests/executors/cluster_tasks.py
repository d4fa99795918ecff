"""Tasks for programs that run inside of a cluster: `python -m tests.executors.slurm_program`."""

from pathlib import Path
from typing import Any

from foretune.executors.task import Limits, Resources, Task


def toy_task(folder: Path, do: str, name: str = "task", *, max_attempts: int = 2, **more: Any) -> Task:
    """A task of the toy worker; its notes say how often it was performed."""
    limits, resources = more.pop("limits", Limits()), more.pop("resources", Resources())
    request = {"do": do, "name": name, "notes": str(folder / "notes.txt"), "began": str(folder / f"{name}.began")}
    return Task(
        name=name,
        worker="tests.executors.toy_worker",
        request={**request, **more},
        folder=folder / "tasks" / name,
        limits=limits,
        resources=resources,
        max_attempts=max_attempts,
    )


def times_performed(folder: Path) -> dict[str, int]:
    """How often each task was begun."""
    path, times = folder / "notes.txt", dict[str, int]()
    for line in path.read_text().splitlines() if path.exists() else ():
        name = line.split()[0]
        times[name] = times.get(name, 0) + 1
    return times
