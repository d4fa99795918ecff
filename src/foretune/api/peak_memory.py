"""The high-water mark of memory: of an accelerator's allocator, or of this process where there is none."""

from collections.abc import Callable


def measures_device() -> bool:
    """Whether the high-water mark is that of an accelerator's allocator."""
    from foretune.accelerator.memory import peak_allocated_bytes
    from foretune.training.devices import available_devices

    return peak_allocated_bytes(available_devices()[0]) is not None


def peak_memory() -> Callable[[], int]:
    """A function that reads it, in bytes."""
    from foretune.accelerator.memory import peak_allocated_bytes
    from foretune.training.devices import available_devices, peak_host_bytes

    device = available_devices()[0]
    return lambda: peak_allocated_bytes(device) or peak_host_bytes()
