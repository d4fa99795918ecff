"""The most that a device computes: by its data sheet where the catalogue has exactly this device, else measured."""

import time
from dataclasses import dataclass

import torch

from foretune import catalog
from foretune.accelerator.timing import wait_for
from foretune.catalog.devices import Device, Kind
from foretune.choices.training import Precision
from foretune.core.memory_errors import lacking_memory
from foretune.step.precision import PrecisionPolicy

_MEASURE_FOR_S = 0.6
_SIZES = {"cpu": (512, 1024), "other": (2048, 4096, 8192)}
_FIELDS = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_dense_tflops",
    "bf16": "bf16_dense_tflops",
    "fp16": "fp16_dense_tflops",
}


@dataclass(frozen=True)
class PeakRate:
    """Operations a second, and who says so."""

    flops_per_s: float
    source: str
    is_measured: bool


def catalogue_peak(device: torch.device, precision: str) -> PeakRate | None:
    """By the data sheet; None where the catalogue has no device of just this name: the nearest would be a guess."""
    row = _row(device)
    rate = None if row is None else getattr(row, _FIELDS[precision])
    if row is None or rate is None:
        return None
    # A device of the catalogue can be several to torch; the row's figures are for all of them together.
    return PeakRate(rate / row.num_logical_devices * 1e12, f"data sheet of {row.title}, {precision}", is_measured=False)


def _row(device: torch.device) -> Device | None:
    if device.type != "cuda":
        return None
    kind: Kind = "rocm" if torch.version.hip else "cuda"
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return catalog.device_by_driver_name(torch.cuda.get_device_name(device), total_bytes, kind)


@torch.no_grad()
def measured_peak(device: torch.device, precision: Precision) -> PeakRate:
    """The fastest of many large products: what this process could reach, with its threads, at this moment."""
    policy = PrecisionPolicy(precision)
    best, best_size = 0.0, 0
    for size in _SIZES.get(device.type, _SIZES["other"]):
        try:
            with policy.products():
                rate = _fastest_product(device, policy.compute_dtype, size)
        except (RuntimeError, MemoryError) as error:
            if best_size and lacking_memory(error):
                break  # a model takes the rest of the device; smaller products were measured
            raise
        if rate > best:
            best, best_size = rate, size
    num_threads = torch.get_num_threads()
    threads = f", {num_threads} thread{'s' if num_threads > 1 else ''}" if device.type == "cpu" else ""
    return PeakRate(
        best, f"measured: fastest {best_size} x {best_size} product in {precision}{threads}", is_measured=True
    )


def _fastest_product(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations a second of the fastest square product of this size."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    best = 0.0
    deadline_s = time.perf_counter() + _MEASURE_FOR_S
    while time.perf_counter() < deadline_s:
        begin_s = time.perf_counter()
        torch.mm(left, right, out=out)
        wait_for(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - begin_s))
    return best
