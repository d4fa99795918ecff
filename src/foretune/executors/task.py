"""A task: which module performs it, with which request, where its files are, and what it may take."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a task needs."""

    num_devices: int = 0
    """Accelerators on each node. 0: the task computes on the CPU and sees no accelerator."""
    num_nodes: int = 1
    num_cpus: int | None = None
    """CPU cores on each node. None: the executor decides."""
    num_processes: int | None = None
    """On each node, of a task on several nodes. None: one for each accelerator, or one."""

    def __post_init__(self) -> None:
        counts = (self.num_nodes, self.num_cpus, self.num_processes)
        if self.num_devices < 0 or any(count is not None and count < 1 for count in counts):
            raise UserError(f"{self} is not valid: a task takes at least 1 node, process and CPU core, and 0 devices.")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Beyond these a task is ended."""

    seconds: float | None = None
    """Of an attempt, from when its worker begins, its imports included."""
    host_bytes: int | None = None
    """Memory of the worker process; the operating system refuses more (RLIMIT_DATA). On a GPU it also counts what the
    driver maps, and not page-locked memory."""

    def __post_init__(self) -> None:
        if any(limit is not None and not limit > 0 for limit in (self.seconds, self.host_bytes)):
            raise UserError(f"{self} is not valid: a limit is greater than 0, or None.")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Work for a process of its own."""

    name: str
    """Unique in its job: letters, digits, dot, underscore and hyphen, at most 100."""
    worker: str
    """The module with `perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]`."""
    request: dict[str, Any]
    """What `perform` is called with; JSON."""
    folder: Path
    """Its own folder, on a file system that all machines of the job see."""
    resources: Resources = field(default_factory=Resources)
    limits: Limits = field(default_factory=Limits)
    max_attempts: int = 2
    """How often one submission starts it, where it is interrupted: preempted, or its node is lost. A task that fails
    is not started again, and whoever submits an interrupted task again starts a new count."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise UserError(
                f"{self.name!r} is not a valid task name. Use 1 to 100 letters, digits, dots, underscores and hyphens."
            )
        if not _MODULE.fullmatch(self.worker):
            raise UserError(f"{self.worker!r} is not a valid worker. Use the dotted name of a module.")
        if self.max_attempts < 1:
            raise UserError(f"max_attempts={self.max_attempts} is not valid: a task is attempted at least once.")

    def to_mapping(self) -> dict[str, Any]:
        """The task as JSON can hold it. The folder is left out: a folder may be moved."""
        fields = asdict(self)
        del fields["folder"]
        return fields

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any], folder: Path) -> "Task":
        """The task that `to_mapping` wrote into this folder."""
        resources, limits = Resources(**fields["resources"]), Limits(**fields["limits"])
        return cls(**{**fields, "folder": folder, "resources": resources, "limits": limits})

    def to_json(self, **more: Any) -> str:
        return json.dumps({**self.to_mapping(), **more}, indent=1) + "\n"
