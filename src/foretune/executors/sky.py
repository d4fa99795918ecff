"""Task files for SkyPilot, which rents machines of many clouds. They are written here, and launched by `sky`.

Fields are those of SkyPilot's documented YAML (its JSON schema of 2026). Nothing of this was launched by Foretune's
tests: they check the files against that schema.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ConfigDict

from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.core.output_files import write_file
from foretune.executors.executor import Executor, checked_options
from foretune.executors.task import Task
from foretune.executors.task_files import write_task

_TASK, _RESULTS = "~/foretune-task", "~/foretune-results"
_PATTERNS: Mapping[str, str] = {
    "accelerators": r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?",
    "cloud": r"[a-z0-9]+",
    "region": r"[A-Za-z0-9][A-Za-z0-9._-]*",
    "cpus": r"[0-9]+(\.[0-9]+)?\+?",
    "memory": r"[0-9]+(\.[0-9]+)?\+?",
    "results": r"(s3|gs|r2|https|oci|nebius|cos)://[A-Za-z0-9][A-Za-z0-9._/-]*",
}


@dataclass(frozen=True, kw_only=True)
class SkyOptions:
    """Which machines, and what happens on them before the command."""

    # `memory=64` is read as a number.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(coerce_numbers_to_str=True)
    accelerators: str | None = None
    """Such as H100:8, on each node."""
    cloud: str | None = None
    region: str | None = None
    use_spot: bool = False
    """Cheaper machines that may be taken away; with `sky jobs launch` the task is then started again."""
    disk_gb: int | None = None
    cpus: str | None = None
    memory: str | None = None
    """GB of host memory: 64, or 64+ for at least so much."""
    max_hourly_usd: float | None = None
    num_nodes: int = 1
    setup: tuple[str, ...] = ("pip install 'foretune[train]'",)
    """Lines of shell that prepare a machine."""
    results: str | None = None
    """A bucket, such as s3://bucket/sweeps: what a task leaves is copied there, whether it failed or not."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Local files or folders, or buckets, by their place on the machine."""
    secrets: tuple[str, ...] = ()
    """Names of variables, such as HF_TOKEN, whose values `sky` takes from your environment."""

    def __post_init__(self) -> None:
        for name, pattern in _PATTERNS.items():
            value = getattr(self, name)
            if value is not None and not re.fullmatch(pattern, value):
                raise UserError(f"{name}={shown(value)} is not valid for SkyPilot.")
        if self.region is not None and self.cloud is None:
            raise UserError(f"region={self.region} needs a cloud. Set cloud, such as cloud=aws.")
        if any(not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in self.secrets):
            raise UserError("secrets: use names of environment variables, never their values.")

    def resources(self) -> dict[str, Any]:
        infra = "/".join(part for part in (self.cloud, self.region) if part is not None)
        fields: dict[str, Any] = {
            "infra": infra or None,
            "accelerators": self.accelerators,
            "cpus": self.cpus,
            "memory": self.memory,
            "use_spot": self.use_spot or None,
            "disk_size": self.disk_gb,
            "max_hourly_cost": self.max_hourly_usd,
        }
        return {name: value for name, value in fields.items() if value is not None}


def write_task_files(tasks: Iterable[Task], folder: Path, options: SkyOptions) -> list[Path]:
    """One file for each task, to launch them on machines of their own. Returns the files."""
    written = []
    for task in tasks:
        write_task(task)
        worker = ["python", "-P", "-m", "foretune.executors.worker"]
        # `~` is the shell's to replace, so that it stands outside of the quotes.
        command = f"{shlex.join(worker)} {_TASK}"
        mounts = {_TASK: str(task.folder.absolute())}
        nodes = max(task.resources.num_nodes, options.num_nodes)
        path = folder / f"{task.name}.yaml"
        write_file(path, _text(task.name, [command], mounts, options, nodes, keep=_TASK))
        written.append(path)
    return written


def write_command_file(path: Path, name: str, command: Sequence[str], options: SkyOptions, *, workdir: Path) -> None:
    """One file for a command of Foretune in this folder, such as a whole sweep on one machine."""
    text = _text(name, [shlex.join(command)], {}, options, options.num_nodes, workdir=workdir, keep=".")
    write_file(path, text)


def _text(
    name: str,
    commands: Sequence[str],
    mounts: Mapping[str, str],
    options: SkyOptions,
    num_nodes: int,
    *,
    keep: str,
    workdir: Path | None = None,
) -> str:
    file_mounts: dict[str, Any] = {**mounts, **options.mounts}
    lines = list(commands)
    if options.results is not None:
        file_mounts[_RESULTS] = {"source": options.results, "mode": "MOUNT"}
        place = f"{_RESULTS}/{shlex.quote(name)}"
        lines = [f"trap 'mkdir -p {place} && cp -r {keep}/. {place}/' EXIT", *lines]
    fields: dict[str, Any] = {
        "name": name,
        "workdir": None if workdir is None else str(workdir.absolute()),
        "num_nodes": num_nodes,
        "resources": options.resources(),
        "file_mounts": file_mounts or None,
        # Null: the value comes from the environment of `sky`.
        "secrets": dict.fromkeys(options.secrets) or None,
        "setup": "\n".join(options.setup) + "\n" if options.setup else None,
        "run": "\n".join(lines) + "\n",
    }
    body = yaml.safe_dump({key: value for key, value in fields.items() if value is not None}, sort_keys=False)
    return f"# Launch: sky jobs launch {shlex.quote(name)}.yaml\n{body}"


def open_sky(options: Mapping[str, Any]) -> Executor:
    """SkyPilot is a launcher of its own: there is nothing to open."""
    checked_options("sky", SkyOptions, options)
    raise UserError(
        "Foretune writes task files for SkyPilot, and `sky` launches them. Run: foretune sweep ... --executor sky "
        "--dry-run, then: sky jobs launch FILE"
    )
