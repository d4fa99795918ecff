"""R16 on a real Ray cluster: two nodes on this machine, one of which is killed while it performs a task or a trial."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ProofSize, lacking
from tests.proofs.conftest import TinyModels
from tests.proofs.sweep_trial_worker import FAULTS, planted
from tests.proofs.test_sweep_trials import results_of, started, written
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

ROOT = Path(__file__).parents[2]
# Namespaces of its own: nothing but loopback to listen on, and all processes end with the program.
APART = ("unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
PROGRAM = 'ip link set lo up && exec "$0" -m "$@"'


def run_apart(module: str, *arguments: str) -> dict[str, Any]:
    """What a program prints last, as JSON."""
    if importlib.util.find_spec("ray") is None:
        lacking("Ray: pip install 'foretune[ray]'")
    answer = subprocess.run(
        [*APART, "sh", "-c", PROGRAM, sys.executable, module, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    said: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return said


def test_r16_a_lost_ray_node_and_faults(
    namespaces: None, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num = proof_size(50, 14)
    reported = run_apart("tests.executors.ray_program", str(tmp_path), str(num))
    expected, found, on_lost_node = reported["expected"], reported["found"], reported["lost_with_the_node"]
    lost = [name for name in expected if found[name][0] is None]
    wrong = [name for name in expected if found[name][0] != expected[name][0]]
    more = [name for name in expected if found[name][1] > expected[name][1]]
    report_figure(
        f"{len(expected)} tasks on two Ray nodes, {num // 2} with faults: one node killed with {len(on_lost_node)} "
        f"running task; {len(lost)} lost, {len(wrong)} classified wrongly, {len(more)} performed twice without need"
    )
    assert on_lost_node, "the second node had something to do"
    assert found == expected
    assert reported["gpus"]["visible"] == "0,1", "a task of two devices has both on one node"
    (note,) = reported["gpus"]["notes"]
    assert note.startswith("A task takes 1 CPU, 3 GPU on one node, and no node of the Ray cluster has that. Tasks wait")
    assert reported["gpus"]["three"] == "never started"


def test_r16_a_sweep_survives_a_lost_ray_node_and_faults(
    namespaces: None,
    tmp_path: Path,
    tiny_models: TinyModels,
    forked_python: "ForkedPython",
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    num = proof_size(50, 6)
    (tmp_path / "ray").mkdir()
    path = written(tmp_path / "ray", tiny_models, num, limits={"host_gib": 3.0})
    lost = run_apart("tests.sweeps.ray_sweep_program", str(path), str(tmp_path / "ray" / "sweeps"))["lost"]
    # The same without faults, on this machine.
    (tmp_path / "clean").mkdir()
    same = written(tmp_path / "clean", tiny_models, num, limits={"host_gib": 3.0})
    assert started(tmp_path / "clean", same, forked_python.python).wait() == 0
    found, clean = results_of(tmp_path / "ray"), results_of(tmp_path / "clean")
    faults = {key: planted(float(key.split()[0])) for key in clean}
    lost_trials = [key for key in faults if key not in found]
    wrong = [
        key for key, fault in faults.items() if found[key].outcome.kind != ("done" if fault is None else FAULTS[fault])
    ]
    again = [result.name for result in found.values() if result.outcome.num_attempts != 1]
    differing = [
        key
        for key, fault in faults.items()
        if fault is None and found[key].numbers.last_loss != clean[key].numbers.last_loss
    ]
    report_figure(
        f"a sweep of {num} trials on two Ray nodes, {num // 2} with faults: one node killed with {len(lost)} running "
        f"trial; {len(lost_trials)} lost, {len(wrong)} classified wrongly, {len(set(again) - set(lost))} run twice "
        f"without need, {len(differing)} with another result than in a clean sweep"
    )
    assert len(clean) == num
    assert lost, "the second node had something to do"
    assert sorted(again) == sorted(lost), "what ran on the lost node ran again, and nothing else"
    assert lost_trials == wrong == differing == []
