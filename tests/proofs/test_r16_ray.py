"""R16 on a real Ray cluster: two nodes on this machine, one of which is killed while it performs a task."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ProofSize, lacking
from tests.waiting import HANG_S

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

ROOT = Path(__file__).parents[2]
# Namespaces of its own: nothing but loopback to listen on, and all processes end with the program.
APART = ("unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
PROGRAM = 'ip link set lo up && exec "$0" -m tests.executors.ray_program "$@"'


def test_r16_a_lost_ray_node_and_faults(
    namespaces: None, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    if importlib.util.find_spec("ray") is None:
        lacking("Ray: pip install 'foretune[ray]'")
    num = proof_size(50, 14)
    answer = subprocess.run(
        [*APART, "sh", "-c", PROGRAM, sys.executable, str(tmp_path), str(num)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    expected, found, on_lost_node = told["expected"], told["found"], told["lost_with_the_node"]
    lost = [name for name in expected if found[name][0] is None]
    wrong = [name for name in expected if found[name][0] != expected[name][0]]
    more = [name for name in expected if found[name][1] > expected[name][1]]
    report_figure(
        f"{len(expected)} tasks on two Ray nodes, {num // 2} with faults: one node killed with {len(on_lost_node)} "
        f"running task; {len(lost)} lost, {len(wrong)} classified wrongly, {len(more)} performed twice without need"
    )
    assert on_lost_node, "the second node had something to do"
    assert found == expected
