"""Two hosts train one model (`.ci/two-hosts`), and their cable is pulled out: noticed, started again, same result."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from foretune.record.run_directory import RunDirectory
from tests.training.rank_runs import run_ranks
from tests.training.short_runs import events_of
from tests.training.test_ranks import final_weights, mapping
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.conftest import ProofSize
    from tests.forked_python import ForkedPython

ROOT = Path(__file__).parents[2]
TinyPipeline = Callable[..., Path]
pytestmark = pytest.mark.takes_turns


def test_a_cable_is_pulled_out_and_the_run_ends_as_if_nothing_had_happened(
    namespaces: None,
    tiny_pipeline: TinyPipeline,
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: "ProofSize",
    report_figure: Callable[[str], None],
) -> None:
    num_cuts = proof_size(10, 1)
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 2, parallel={"timeout_s": 15.0}, save={"every": 3})
    asked["train"]["steps"] = 20 * (num_cuts + 1)
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(asked))
    (whole, _) = run_ranks(forked_python.python, 2, "trained", mapping=asked, runs=str(tmp_path / "whole"))

    program = ["-m", "tests.training.cable_program", str(tmp_path / "two.yaml"), str(tmp_path / "runs"), str(num_cuts)]
    answer = subprocess.run(
        [ROOT / ".ci" / "two-hosts", sys.executable, *program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S * num_cuts,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for host in json.loads(answer.stdout.splitlines()[-1]):
        assert host["code"] == 0, host["shown"]
    (path,) = (tmp_path / "runs" / "short").glob("2*")
    ends = [event["reason"] for event in events_of(RunDirectory(path), "ended")]
    assert len(ends) == num_cuts + 1
    for end in ends[:-1]:
        assert "did not answer for 15 s (parallel.timeout_s)" in end or "was closed" in end, ends
    expected, found = final_weights(Path(whole["run"])), final_weights(path)
    assert expected.keys() == found.keys()
    assert all(expected[name].equal(found[name]) for name in expected)
    report_figure(f"{num_cuts} cuts of the cable between two hosts: {num_cuts} noticed, same weights at the end")
