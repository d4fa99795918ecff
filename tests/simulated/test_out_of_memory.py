"""Running out of device memory or of page-locked memory is recorded as what it is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune.api.run import RunFailed
from foretune.core.memory_errors import lacking_memory

pytestmark = pytest.mark.simulated


@pytest.fixture
def unlimited_again(simulated_gpu: Any) -> Iterator[Any]:
    import torch

    yield simulated_gpu
    simulated_gpu.fail_allocation(0)
    simulated_gpu.set_pinned_limit(2**63)
    torch.cuda.empty_cache()


def test_page_locked_memory_runs_out_with_a_plain_error(unlimited_again: Any) -> None:
    import torch

    unlimited_again.set_pinned_limit(2**20)
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**21, dtype=torch.uint8, pin_memory=True)
    assert not isinstance(raised.value, torch.OutOfMemoryError)
    assert lacking_memory(raised.value) == "device"


@pytest.mark.parametrize("number", [1, 400])
def test_a_run_that_runs_out_of_memory_says_so(
    number: int, unlimited_again: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    experiment = {
        "model": str(tiny_pipeline("flux", "dev")),
        "method": {"kind": "lora", "rank": 4},
        "data": {"kind": "shapes", "resolution": 64, "num_samples": 8},
        "train": {"steps": 2, "batch_size": 1, "precision": "bf16"},
        "validate": {"num_held_out": 0},
    }
    unlimited_again.fail_allocation(number)
    with pytest.raises((RunFailed, ft.UserError)):
        ft.train(experiment, runs=tmp_path / "runs")
    (latest,) = (tmp_path / "runs").glob("*/latest")
    assert ft.open_run(latest).status == "out of memory"
