"""Collectives among the GPUs of this machine, in one process."""

import statistics
import time
from collections.abc import Callable

import torch

from foretune.accelerator.timing import wait_for
from foretune.core.values.device_profile import CollectiveName, CollectivePoint, KernelTime
from foretune.measure.calibration.rounds import spread_of

_SIZES_BYTES = (2**16, 2**20, 2**24, 2**28)
_NUM_SAMPLES = 7


def measure_collectives(device: torch.device) -> tuple[CollectivePoint, ...]:
    """Empty with one device, and where torch has no NCCL or RCCL."""
    if device.type != "cuda" or torch.cuda.device_count() < 2:  # noqa: PLR2004
        return ()
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not torch.cuda.nccl.is_available([torch.empty(1, device=found) for found in devices]):
        return ()
    points = []
    for num_bytes in _SIZES_BYTES:
        for kind, run in _runs(devices, num_bytes).items():
            points.append(CollectivePoint(kind, len(devices), num_bytes, _timed(run, devices)))
    return tuple(points)


def _runs(devices: list[torch.device], num_bytes: int) -> dict[CollectiveName, Callable[[], object]]:
    nccl, count = torch.cuda.nccl, num_bytes // 2
    whole = [torch.zeros(count, dtype=torch.bfloat16, device=device) for device in devices]
    parts = [torch.zeros(count // len(devices), dtype=torch.bfloat16, device=device) for device in devices]
    gathered = [torch.zeros(part.numel() * len(devices), dtype=part.dtype, device=part.device) for part in parts]
    return {
        "all_reduce": lambda: nccl.all_reduce(whole, whole),
        "all_gather": lambda: nccl.all_gather(parts, gathered),
        "reduce_scatter": lambda: nccl.reduce_scatter(gathered, parts),
    }


def _timed(run: Callable[[], object], devices: list[torch.device]) -> KernelTime:
    run()
    samples = []
    for _ in range(_NUM_SAMPLES):
        for device in devices:
            wait_for(device)
        begin_s = time.perf_counter()
        run()
        for device in devices:
            wait_for(device)
        samples.append(time.perf_counter() - begin_s)
    return KernelTime(statistics.median(samples), spread_of(samples))
