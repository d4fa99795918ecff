"""Each process of a run computes on a GPU of its own, which is also its current one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from foretune.choices.running import Parallel
from foretune.training.ranks import Ranks, joined

pytestmark = pytest.mark.simulated

CHOOSE = "from foretune.training.devices import choose_device; print(choose_device('cuda', local_rank=1))"


@pytest.mark.parametrize(("visible", "expected"), [("0,1", "cuda:1"), ("1", "cuda:0")])
def test_a_process_that_sees_only_its_own_gpu_takes_it(visible: str, expected: str) -> None:
    """As SLURM shows it with --gpus-per-task=1."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    asked = subprocess.run([sys.executable, "-c", CHOOSE], env=environment, capture_output=True, text=True, check=False)
    assert asked.stdout.split() == [expected], asked.stderr


@pytest.fixture
def fake_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second of two processes, of which the first does not exist: collectives return at once."""
    real = dist.init_process_group

    def join(*_: Any, **__: Any) -> None:
        real("fake", store=FakeStore(), rank=1, world_size=2)

    monkeypatch.setattr(dist, "init_process_group", join)
    yield
    torch.cuda.set_device(0)


@pytest.mark.usefixtures("fake_group")
def test_the_current_gpu_is_that_of_the_process(simulated_gpu: Any) -> None:
    """NCCL and FSDP2 use the current one."""
    ranks = Ranks(rank=1, size=2, local_rank=1, local_size=2)
    with joined(Parallel(devices=2), ranks, torch.device("cuda", 1)):
        assert torch.cuda.current_device() == 1
