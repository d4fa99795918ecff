"""Memory of a device, as its allocator reports it."""

import gc

import torch

_read_on_mps_bytes = 0
"""The largest value read since the last reset. `torch.mps` keeps no high-water mark."""


def _has_statistics(device: torch.device) -> bool:
    """Returns whether the allocator keeps high-water marks. That of MPS does not."""
    return device.type not in ("cpu", "mps", "meta")


def allocated_bytes(device: torch.device) -> int | None:
    """Returns the bytes in use now; None on a CPU. On MPS, what the driver has allocated, with its caches."""
    global _read_on_mps_bytes  # noqa: PLW0603 - one device
    if device.type == "mps":
        num_bytes = int(torch.mps.driver_allocated_memory())
        _read_on_mps_bytes = max(_read_on_mps_bytes, num_bytes)
        return num_bytes
    return torch.accelerator.memory_allocated(device) if _has_statistics(device) else None


def peak_allocated_bytes(device: torch.device) -> int | None:
    """Returns the most bytes in use since the last reset; None on a CPU.

    On MPS it is the largest value that `allocated_bytes` has returned, so peaks between two readings are missing.
    """
    if device.type == "mps":
        allocated_bytes(device)
        return _read_on_mps_bytes
    return torch.accelerator.max_memory_allocated(device) if _has_statistics(device) else None


def reserved_bytes(device: torch.device) -> int | None:
    """What the allocator holds of the device now; None where it does not say."""
    return torch.accelerator.memory_reserved(device) if _has_statistics(device) else None


def peak_reserved_bytes(device: torch.device) -> int | None:
    """Returns the most bytes that the allocator held since the last reset; None on a CPU and on MPS."""
    return torch.accelerator.max_memory_reserved(device) if _has_statistics(device) else None


def reset_peaks(device: torch.device) -> None:
    """Starts the high-water marks again at what is in use now."""
    global _read_on_mps_bytes  # noqa: PLW0603 - one device
    if device.type == "mps":
        _read_on_mps_bytes = 0
    elif _has_statistics(device):
        torch.accelerator.reset_peak_memory_stats(device)


def free_memory() -> None:
    """Frees unreachable tensors, and returns the memory that the allocator holds without use to the device."""
    gc.collect()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    elif torch.accelerator.is_available():
        torch.accelerator.empty_cache()
