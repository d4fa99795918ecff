"""SkyPilot's task files: their fields, against the schema that SkyPilot documents."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.core.errors import UserError
from foretune.executors.executor import checked_options
from foretune.executors.sky import SkyOptions, write_command_file, write_task_files
from foretune.executors.task import Resources
from foretune.executors.task_files import read_task
from tests.executors.cluster_tasks import toy_task

# From SkyPilot's JSON schemas of a task, of its resources and of storage (sky/utils/schemas.py, 2026), for the fields
# that are written here. Additional fields are refused there.
TASK_FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "workdir": str,
    "num_nodes": int,
    "resources": dict,
    "file_mounts": dict,
    "secrets": dict,
    "setup": str,
    "run": str,
}
RESOURCE_FIELDS: dict[str, type | tuple[type, ...]] = {
    "infra": str,
    "accelerators": str,
    "cpus": (str, int, float),
    "memory": (str, int, float),
    "use_spot": bool,
    "disk_size": int,
    "max_hourly_cost": (int, float),
}
FULL = {
    "accelerators": "H100:8",
    "cloud": "aws",
    "region": "us-east-1",
    "use_spot": "true",
    "disk_gb": "500",
    "cpus": "32+",
    "memory": "256+",
    "max_hourly_usd": "40",
    "num_nodes": "2",
    "results": "s3://bucket/sweeps",
    "secrets": ("HF_TOKEN",),
    "mounts": {"~/models": "models"},
}


def check_schema(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = yaml.safe_load(text)
    for name, value in fields.items():
        assert isinstance(value, TASK_FIELDS[name]), name
    for name, value in fields["resources"].items():
        assert isinstance(value, RESOURCE_FIELDS[name]), name
    for value in fields.get("file_mounts", {}).values():
        assert isinstance(value, str) or value.keys() == {"source", "mode"}
    assert all(value is None for value in fields.get("secrets", {}).values()), "values of secrets are never written"
    return fields


def test_a_file_for_each_task(tmp_path: Path) -> None:
    options = checked_options("sky", SkyOptions, FULL)
    tasks = [toy_task(tmp_path, "square", f"task-{number}", number=number) for number in range(2)]
    first, _ = write_task_files(tasks, tmp_path / "sky", options)
    fields = check_schema(first.read_text())
    assert fields["name"] == "task-0"
    assert fields["num_nodes"] == 2
    assert fields["resources"] == {
        "infra": "aws/us-east-1",
        "accelerators": "H100:8",
        "cpus": "32+",
        "memory": "256+",
        "use_spot": True,
        "disk_size": 500,
        "max_hourly_cost": 40.0,
    }
    assert fields["file_mounts"]["~/foretune-task"] == str(tasks[0].folder)
    assert fields["file_mounts"]["~/foretune-results"] == {"source": "s3://bucket/sweeps", "mode": "MOUNT"}
    assert "foretune.executors.worker ~/foretune-task" in fields["run"]
    assert read_task(tasks[0].folder) == tasks[0], "the machine finds the task in the folder that it is given"


def test_what_runs_on_the_machine_is_valid_shell_and_keeps_results_of_a_failure(tmp_path: Path) -> None:
    options = checked_options("sky", SkyOptions, {"results": "s3://bucket"})
    path = tmp_path / "sweep.yaml"
    write_command_file(path, "my-sweep", ["false", "an argument"], options, workdir=tmp_path / "work")
    fields = check_schema(path.read_text())
    assert "'an argument'" in fields["run"]
    home, work = tmp_path / "home", tmp_path / "work"
    (home / "foretune-results").mkdir(parents=True)
    work.mkdir()
    (work / "result.txt").write_text("42")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(["bash", "-c", fields["run"]], cwd=work, env=environment, check=False)
    assert answer.returncode != 0
    assert (home / "foretune-results" / "my-sweep" / "result.txt").read_text() == "42"


def test_nodes_of_a_task_are_those_of_its_resources(tmp_path: Path) -> None:
    task = toy_task(tmp_path, "square", number=1, resources=Resources(num_nodes=3, num_devices=8))
    (path,) = write_task_files([task], tmp_path / "sky", SkyOptions())
    assert check_schema(path.read_text())["num_nodes"] == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accelerators": "H100:8; touch x"}, "accelerators"),
        ({"region": "us-east-1"}, "needs a cloud"),
        ({"results": "bucket"}, "results=bucket is not valid"),
        ({"secrets": ("HF_TOKEN=hf_x",)}, "names of environment variables"),
        ({"acelerators": "H100"}, "accelerators"),
    ],
)
def test_options_that_are_not_valid(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        checked_options("sky", SkyOptions, options)
