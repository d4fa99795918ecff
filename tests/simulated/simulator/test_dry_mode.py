"""Dry mode: a program's memory without its computations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated.simulator.dry_program import TOKENS, WIDTH

pytestmark = pytest.mark.simulated

_ROOT = Path(__file__).parents[3]


def test_a_model_of_gigabytes_is_trained_without_its_memory() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "tests.simulated.simulator.dry_program"],
        env={**os.environ, "SIMACCEL": "rtx-4090", "SIMACCEL_DRY": "1"},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    weights = 8 * (WIDTH * WIDTH + WIDTH) * 2
    activations = 8 * TOKENS * WIDTH * 2
    # Weights, gradients and both states of AdamW are allocated at the same time as what backward still needs.
    assert 3 * weights + activations < result["peak_bytes"] < 4 * weights + 3 * activations
    assert result["host_bytes"] < result["peak_bytes"]
    assert result["schedule"] == [0, 0.25, 0.5, 0.75, 1]
    assert result["losses"] == [0, 0]
    assert result["assumptions"] == ["item of f32"]
    assert result["num_operators"] > 8
