"""Whether the kernel ended a process because memory ran out. A SIGKILL alone does not say who sent it."""

from dataclasses import dataclass
from pathlib import Path

_COUNTER = "oom_kill"


@dataclass(frozen=True)
class MemoryKills:
    """How many processes the kernel has ended for lack of memory; None where it does not say."""

    of_group: int | None
    """In the control group of this process: a container, a SLURM job."""
    of_machine: int | None

    @classmethod
    def now(cls, root: Path = Path("/")) -> "MemoryKills":
        return cls(_count_of_group(root), _count(root / "proc/vmstat"))

    def since(self, before: "MemoryKills") -> str | None:
        """What can be said if a process received SIGKILL meanwhile; None where nothing points to memory."""
        if _has_grown(before.of_group, self.of_group):
            return "memory ran out: the kernel ended a process of this control group meanwhile (oom_kill)"
        if _has_grown(before.of_machine, self.of_machine):
            return (
                "memory probably ran out: the kernel ended a process of this machine for lack of memory meanwhile, "
                "and does not say which (oom_kill)"
            )
        return None


def _has_grown(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def _count_of_group(root: Path) -> int | None:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found = _count(root / "sys/fs/cgroup" / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found = _count(root / "sys/fs/cgroup/memory" / path.lstrip("/") / "memory.oom_control")
        else:
            continue
        if found is not None:
            return found
    return None


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(value) for name, _, value in (line.partition(" ") for line in lines) if name == _COUNTER), None)
