"""Trials on several nodes: what is refused, and on a real SLURM cluster (`.ci/slurm`) what they survive."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.api.sweep import sweep
from foretune.core.errors import ExperimentErrors, UserError
from foretune.executors.state import read_state
from foretune.record.run_directory import RunDirectory
from foretune.sweeps.trial_results import read_result
from tests.conftest import lacking
from tests.sweeps.sweeps_of_tests import asked, written
from tests.training.short_runs import events_of
from tests.training.test_ranks import final_weights
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
SLURM = ROOT / ".ci" / "slurm"
STEPS = 30


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_an_executor_of_single_nodes_refuses_them_before_anything_is_made(executor: str, tmp_path: Path) -> None:
    path = written(tmp_path, resources={"nodes": 2})
    with pytest.raises(UserError, match=f"the {executor} executor runs each task on one node"):
        sweep(path, executor=executor, plot=False, sweeps=tmp_path / "sweeps")
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(("devices", "nearest"), [(1, 2), (3, 4), (5, 4)])
def test_devices_that_cannot_be_split_over_the_nodes_are_a_mistake(devices: int, nearest: int, tmp_path: Path) -> None:
    resources, axes = {"nodes": 2}, {"parallel.devices": [4, devices]}
    words = f"parallel.devices: {devices} cannot be split over 2 nodes .*Nearest: parallel.devices={nearest}"
    with pytest.raises(ExperimentErrors, match=words):
        asked(tmp_path, axes=axes, resources=resources)
    asked(tmp_path, axes={"parallel.devices": [2, 4]}, resources=resources)


def experiment(model: Path, folder: Path) -> dict[str, Any]:
    return {
        "model": str(model),
        "method": {"kind": "full"},
        "data": {"kind": "shapes", "resolution": 32, "num_samples": 8, "cache_dir": str(folder / "cache")},
        "train": {"batch_size": 1, "precision": "fp32"},
        "validate": {"num_held_out": 0},
        "parallel": {"device": "cpu", "threads": 1, "devices": 2},
    }


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.takes_turns
def test_r10_a_trial_on_two_nodes_is_preempted_and_requeued_and_nothing_is_lost(
    namespaces: None, tiny_pipeline: Callable[..., Path], tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    if not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged"))):
        lacking("SLURM: apt-get install slurmctld slurmd slurm-client munge")
    mapping = {
        "experiment": experiment(tiny_pipeline("ddpm"), tmp_path),
        "steps": STEPS,
        "axes": {"optimizer.lr": [1e-4]},
        "resources": {"nodes": 2},
    }
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump(mapping))
    answer = subprocess.run(
        [SLURM, sys.executable, "-m", "tests.sweeps.slurm_sweep_program", path, tmp_path / "sweeps"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["code"] == 0, found["shown"]
    assert found["jobs"][0] == found["jobs"][1] is not None, "it was requeued, not submitted again"
    (trial,) = (tmp_path / "sweeps/nodes/sweep_000/trials").glob("*/trial.json")
    result = read_result(trial.parent)
    assert result is not None
    assert result.is_done, result.outcome
    assert result.run is not None
    assert len(list(trial.parent.glob("2*"))) == 1
    started = [event["first_step"] for event in events_of(RunDirectory(result.run), "started")]
    steps = [event["step"] for event in events_of(RunDirectory(result.run), "step")]
    assert started[0] == 0
    assert started == sorted(set(started)), "each attempt continues where the one before it had saved"
    assert sorted(steps) == sorted(set(steps)) == list(range(STEPS)), "no step was made twice"
    assert read_state(trial.parent).num_attempts == len(started) == 3
    # The same on this machine, undisturbed.
    mapping["resources"] = {}
    path.write_text(yaml.safe_dump(mapping))
    (alone,) = sweep(path, plot=False, sweeps=tmp_path / "alone").results
    assert alone.run is not None
    expected, ends = final_weights(alone.run), final_weights(result.run)
    assert expected.keys() == ends.keys()
    assert all(expected[name].equal(ends[name]) for name in expected)
    report_figure(f"R10, a trial on two nodes: preempted and requeued after steps {started[1:]}, 0 of {STEPS} repeated")
