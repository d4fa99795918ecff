"""The page on executors: every option and outcome, and nothing else."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from foretune.executors.executor import EXECUTORS
from foretune.executors.local import LocalOptions
from foretune.executors.outcome import OUTCOME_KINDS
from foretune.executors.ray_cluster import RayOptions
from foretune.executors.sky import SkyOptions
from foretune.executors.slurm_options import SlurmOptions

PAGE = (Path(__file__).parents[2] / "docs" / "executors.md").read_text(encoding="utf-8")
_EVERYWHERE = {"grace_s"}


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("title", "options"), [("This machine", LocalOptions), ("SLURM", SlurmOptions), ("Ray", RayOptions)]
)
def test_the_table_has_every_option(title: str, options: type) -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", section(title), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named | _EVERYWHERE == {field.name for field in fields(options)}


def test_options_of_task_files() -> None:
    named = set(re.findall(r"`(\w+)`", section("SkyPilot")))
    assert named >= {field.name for field in fields(SkyOptions)}


def test_outcomes_and_executors() -> None:
    rows = re.findall(r"^\| ([^|`]+) \|", section("How a task ends"), re.MULTILINE)
    assert tuple(rows[1:]) == OUTCOME_KINDS
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.split("## ")[0], re.MULTILINE)) == set(EXECUTORS)
