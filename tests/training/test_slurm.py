"""A run on two nodes of a real SLURM cluster (`.ci/slurm`): a lost task, and the same result after it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from foretune.record.run_directory import RunDirectory
from tests.conftest import lacking
from tests.training.rank_runs import run_ranks
from tests.training.short_runs import events_of
from tests.training.test_ranks import final_weights, mapping
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

ROOT = Path(__file__).parents[2]
SLURM = ROOT / ".ci" / "slurm"
TinyPipeline = Callable[..., Path]
pytestmark = pytest.mark.takes_turns


def test_a_task_of_two_nodes_is_lost_and_the_run_ends_as_if_nothing_had_happened(
    namespaces: None, tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    if not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged"))):
        lacking("SLURM: apt-get install slurmctld slurmd slurm-client munge")
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 2, parallel={"sharding": "full"}, save={"every": 5})
    asked["train"]["steps"] = 40
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(asked))
    (whole, _) = run_ranks(forked_python.python, 2, "trained", mapping=asked, runs=str(tmp_path / "whole"))

    answer = subprocess.run(
        [SLURM, sys.executable, "-m", "tests.training.slurm_program", tmp_path / "two.yaml", tmp_path / "runs"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "lo"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    lost, resumed = json.loads(answer.stdout.splitlines()[-1])
    assert lost["code"] != 0
    assert "2 processes on cpu (gloo, started by SLURM), FSDP2: the first holds" in lost["shown"]
    assert resumed["code"] == 0, resumed["shown"]
    assert resumed["shown"].count("Finished 40 steps") == 1, "only the first process reports"
    (path,) = (tmp_path / "runs" / "short").glob("2*")
    started = [event["first_step"] for event in events_of(RunDirectory(path), "started")]
    assert len(started) == 2
    assert 5 <= started[1] < 40
    expected, found = final_weights(Path(whole["run"])), final_weights(path)
    assert expected.keys() == found.keys()
    assert all(expected[name].equal(found[name]) for name in expected)
