"""The options of the SLURM executor. They become lines of a batch script: none of them can be more than a value."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.executors.task import Resources, Task
from foretune.executors.watching import GRACE_S

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
_NAMES = rf"{_NAME}(,{_NAME})*"
_PATTERNS: Mapping[str, str] = {
    "partition": _NAMES,
    "account": _NAME,
    "qos": _NAME,
    "reservation": _NAMES,
    "constraint": r"[A-Za-z0-9_\[(][A-Za-z0-9_.&|*,:!@()\[\]-]*",
    "gres": r"[A-Za-z0-9_][A-Za-z0-9_.:,()*=/-]*",
    "nodelist": r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*",
    "exclude": r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*",
    "mem": r"[0-9]+[KMGT]?B?",
    "job_name": r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    "time": r"[0-9]+|[0-9]+(:[0-9]{1,2}){1,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}",
}
_UNSAFE_IN_PATHS = re.compile(r"[\x00-\x1f\x7f%\\]")
"""Control characters would end the line of the script; SLURM itself replaces % and drops backslashes."""
_SECONDS = (1, 60, 3600)


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What the user decides about the jobs; names are those of `sbatch`."""

    # `time=30` is read as a number.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(coerce_numbers_to_str=True)
    time: str | None = None
    """Minutes, or as SLURM writes it: 1:30:00, 2-12. None: the limit of the task."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    """None: as many GPUs as the task needs (`--gpus-per-node`)."""
    reservation: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    mem: str | None = None
    """Of each node, such as 64G."""
    job_name: str = "foretune"
    jobs: int = 256
    """Elements of an array that run at once."""
    signal_s: int = 90
    """How long before the end of its time a job is requested to save and is requeued."""
    setup: tuple[str, ...] = ()
    """Lines of shell that each job runs first, such as `module load cuda`. They are commands: they are run as they
    are."""
    grace_s: float = GRACE_S
    """From a request to end until a worker is killed."""
    poll_s: float = 15.0
    """How often SLURM is asked. Outcomes are seen earlier, in the tasks' folders."""
    folder: str | None = None
    """Where submitit keeps its files; a file system that all nodes see. None: beside the tasks."""

    def __post_init__(self) -> None:
        for name, pattern in _PATTERNS.items():
            value = getattr(self, name)
            if value is not None and not re.fullmatch(pattern, value):
                raise UserError(f"{name}={shown(value)} is not valid for SLURM. {_example(name)}")
        for line in self.setup:
            if not line.isprintable():
                raise UserError(f"setup: {shown(line)} is not one line of shell. Pass several lines as a list.")
        if self.folder is not None:
            require_safe_path(Path(self.folder))
        if self.jobs < 1 or self.signal_s < 1 or not self.poll_s > 0:
            raise UserError("jobs, signal_s and poll_s are greater than 0.")

    def minutes(self, task: Task) -> int:
        """The time limit of a job."""
        if self.time is not None:
            return minutes_of(self.time)
        if task.limits.seconds is None:
            raise UserError(
                "A SLURM job needs a time limit, and partitions often have a short one. Set time, such as time=2:00:00."
            )
        # Until the worker has ended after its limit, and for the start of the job.
        return math.ceil((task.limits.seconds + self.grace_s + self.signal_s) / 60) + 1

    def parameters(self, task: Task) -> dict[str, Any]:
        """What submitit writes into the script of a task."""
        resources = task.resources
        # On one node the worker starts the processes of its devices itself, as it does without SLURM.
        per_node = 1 if resources.num_nodes == 1 else resources.num_processes or max(1, resources.num_devices)
        gpus = None if self.gres is not None or resources.num_devices == 0 else resources.num_devices
        chosen = {
            "time": self.minutes(task),
            "nodes": resources.num_nodes,
            "ntasks_per_node": per_node,
            "cpus_per_task": _cpus_per_task(resources, per_node),
            "gpus_per_node": gpus,
            "setup": list(self.setup) or None,
            "array_parallelism": self.jobs,
            "signal_delay_s": self.signal_s,
            "stderr_to_stdout": True,
            "additional_parameters": {"requeue": True, **_given(self, "reservation")},
            # A process that fails ends the others, which would wait for it.
            "srun_args": ["--kill-on-bad-exit=1", "--wait=60"],
        }
        names = ("partition", "account", "qos", "constraint", "gres", "nodelist", "exclude", "mem", "job_name")
        return {name: value for name, value in chosen.items() if value is not None} | _given(self, *names)


def minutes_of(time: str) -> int:
    """SLURM's way of writing a time, in minutes: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == len(_SECONDS):
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return max(1, math.ceil((int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds) / 60))


def require_safe_path(path: Path) -> None:
    """Refuses a folder whose name cannot be written into a batch script."""
    if _UNSAFE_IN_PATHS.search(str(path.absolute())):
        raise UserError(
            f"{shown(path)} cannot be used with SLURM: its name has a line break, a control character, % or a "
            "backslash. Choose another folder."
        )


def _cpus_per_task(resources: Resources, per_node: int) -> int | None:
    return None if resources.num_cpus is None else max(1, resources.num_cpus // per_node)


def _given(options: SlurmOptions, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _example(name: str) -> str:
    examples = {"time": "2:00:00", "gres": "gpu:a100:2", "mem": "64G", "constraint": "a100|h100"}
    return f"Example: {name}={examples.get(name, 'gpu-long')}"
