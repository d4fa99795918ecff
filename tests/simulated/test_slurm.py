"""A run on a real SLURM cluster (`.ci/slurm`) whose tasks see one simulated GPU each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from foretune.record.run_directory import RunDirectory
from tests.conftest import lacking
from tests.training.short_runs import losses_of, short_mapping
from tests.waiting import HANG_S

pytestmark = [pytest.mark.simulated, pytest.mark.takes_turns, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SLURM = ROOT / ".ci" / "slurm"
FORETUNE = (sys.executable, "-m", "foretune")
# Tasks may outnumber the processors of a small machine.
ONE_GPU_A_TASK = ("srun", "--nodes", "1", "--ntasks", "2", "--overcommit", "--gpus-per-task=1")
ALL_GPUS_TO_EACH = ("srun", "--nodes", "1", "--ntasks", "2", "--overcommit", "--gres=gpu:2")


def on_slurm(*command: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command on a cluster whose nodes have two GPUs; every process simulates the same two."""
    return subprocess.run(
        [SLURM, *command],
        env={
            **os.environ,
            "FORETUNE_SLURM_GPUS": "2",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("src", "simaccel/src")),
            "SIMACCEL": "cuda",
            "SIMACCEL_DEVICES": "2",
        },
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.parametrize("launch", [ONE_GPU_A_TASK, ALL_GPUS_TO_EACH], ids=["one GPU a task", "all GPUs"])
def test_tasks_of_slurm_train_together(
    launch: tuple[str, ...], namespaces: None, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    if not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged"))):
        lacking("SLURM: apt-get install slurmctld slurmd slurm-client munge")
    seen = on_slurm(*launch, "bash", "-c", "echo sees=$CUDA_VISIBLE_DEVICES").stdout
    expected = ["sees=0", "sees=1"] if launch == ONE_GPU_A_TASK else ["sees=0,1", "sees=0,1"]
    assert sorted(line for line in seen.splitlines() if line.startswith("sees=")) == expected

    parallel = {"device": "cuda", "devices": 2}
    asked = short_mapping(tiny_pipeline("ddpm"), tmp_path, "full", parallel=parallel)
    experiment = tmp_path / "two.yaml"
    experiment.write_text(yaml.safe_dump(asked))
    trained = on_slurm(*launch, *FORETUNE, "train", str(experiment), "--runs", str(tmp_path / "runs"))
    assert trained.returncode == 0, trained.stdout
    assert "2 processes on cuda (nccl, started by SLURM), DDP" in trained.stdout
    (path,) = (tmp_path / "runs" / "short").glob("2*")
    assert len(losses_of(RunDirectory(path))) == 3
