"""Collectives between two processes with a simulated device each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.simulated

_ROOT = Path(__file__).parents[3]


def test_two_ranks_exchange_numbers_and_an_early_use_is_a_race(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulated.simulator.rank_program", str(rank), str(tmp_path / "store")],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors for _, errors in outputs)
    for results in (json.loads(output) for output, _ in outputs):
        assert results["total"] == [3] * 4
        assert results["mean"] == [1.5] * 4
        assert results["gathered"] == [1] * 4 + [2] * 4
        assert results["scattered"] == [3] * 2
        assert results["sent"] == [1] * 4
        assert results["gradient"] == [[1.5] * 4]
        assert results["findings"] == []
        (message,) = results["early"]
        assert "aten::add reads" in message
        assert "what all_reduce writes" in message
