"""`foretune data encode` on a real SLURM cluster and a real Ray cluster, two workers each: the set of one process."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretune
from foretune.data.shards import ShardLimits
from tests.conftest import lacking
from tests.proofs.test_r10_slurm import SLURM
from tests.proofs.test_r16_ray import APART
from tests.training.encoded_runs import InThisProcess, contents, encode, pictures, written
from tests.waiting import HANG_S

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

ROOT = Path(__file__).parents[2]
NUM = 12
_RAY = 'ip link set lo up && exec "$0" "$@"'


@pytest.mark.parametrize("executor", ["slurm", "ray"])
def test_a_cluster_makes_the_same_set(
    executor: str,
    namespaces: None,
    tmp_path: Path,
    tiny_pipeline: Callable[..., Path],
    report_figure: Callable[[str], None],
) -> None:
    if executor == "slurm" and not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged"))):
        lacking("SLURM: apt-get install slurmctld slurmd slurm-client munge")
    if executor == "ray" and importlib.util.find_spec("ray") is None:
        lacking("Ray: pip install 'foretune[ray]'")
    data = {"kind": "folder", "path": str(pictures(tmp_path / "pictures", NUM)), "resolution": 32,
            "cache_dir": str(tmp_path / "cache"), "max_text_tokens": 16}  # fmt: skip
    parallel = {"device": "cpu", "threads": 1}
    experiment = written(tmp_path / "e.yaml", tiny_pipeline("sd3"), tmp_path, data=data, parallel=parallel)
    around = [str(SLURM)] if executor == "slurm" else [*APART, "sh", "-c", _RAY]
    program = [sys.executable, "-m", "tests.executors.encode_program", executor]
    answer = subprocess.run(
        [*around, *program, str(experiment), str(tmp_path / "cluster")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    reported: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert {name: part["kind"] for name, part in reported["parts"].items()} == dict.fromkeys(
        ("000000", "000001", "prompts"), "done"
    )
    assert encode(experiment, tmp_path / "here", part_size=8, limits=ShardLimits(), executor=InThisProcess())
    found, expected = contents(tmp_path / "cluster"), contents(tmp_path / "here")
    different = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
    report_figure(
        f"{reported['num_samples']} samples in {len(reported['parts'])} parts by 2 workers on {executor}: "
        f"{len(different)} of {len(expected)} files differ from those of one process"
    )
    assert different == []
    assert not foretune.check_data(tmp_path / "cluster").faults
