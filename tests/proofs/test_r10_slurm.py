"""R10: on two nodes of a real SLURM cluster (`.ci/slurm`) tasks are preempted, requeued, cancelled, run out of time and
memory, and lose their node and their controller. None is lost, and none is performed when it should not be.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import lacking
from tests.waiting import HANG_S

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

ROOT = Path(__file__).parents[2]
SLURM = ROOT / ".ci" / "slurm"


def test_r10_no_task_is_lost_or_performed_twice(
    namespaces: None, tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    if not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged"))):
        lacking("SLURM: apt-get install slurmctld slurmd slurm-client munge")
    answer = subprocess.run(
        [SLURM, sys.executable, "-m", "tests.executors.slurm_program", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    reported = json.loads(answer.stdout.splitlines()[-1])
    expected, found = reported["expected"], reported["found"]
    lost = [name for name in expected if found[name][0] is None]
    wrong = [name for name in expected if name not in lost and found[name][0] != expected[name][0]]
    more = [name for name in expected if found[name][1] > expected[name][1]]
    report_figure(
        f"{len(expected)} tasks on SLURM: {len(lost)} lost, {len(wrong)} with another outcome than expected, "
        f"{len(more)} performed more often than they were interrupted"
    )
    assert found == expected
