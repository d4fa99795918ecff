"""A simulated MPS device: the CPU's kernels for the operators that have a kernel on Apple's GPUs, and no others.

SIMACCEL=mps puts it behind `torch.device("mps")` when torch is imported. An operator without a kernel, a tensor of
float64 and a mix of devices raise the errors of a Mac. Not simulated: rounding, speed, limits of memory, and which
dtypes a kernel takes.
"""

from typing import Any

_BYTES_OF_THE_MACHINE = 16 << 30


def unsafe_copies(clear: bool = False) -> list[str]:
    """Returns the stacks of copies to the device with `non_blocking=True`. torch 2.13 does not keep their source alive
    there: memory that is freed or changed too early reaches the device.
    """
    import torch

    copies: list[str] = torch.ops.simaccel_mps.unsafe_copies(clear)
    return copies


def install() -> None:
    """Puts the simulated device behind torch.mps."""
    import torch

    from simaccel.mps.build import build
    from simaccel.mps.operators import operators_on_mps

    torch.ops.load_library(build())
    torch.ops.simaccel_mps.register_kernels(operators_on_mps())
    _replace_bindings(torch)


def _replace_bindings(torch: Any) -> None:
    device = torch.ops.simaccel_mps
    bindings = {
        "_has_mps": True,
        "_mps_is_available": lambda: True,
        "_mps_is_on_macos_or_newer": lambda major, minor: True,  # noqa: ARG005
        "_mps_get_name": lambda: "Simulated Apple GPU",
        "_mps_get_core_count": lambda: 10,
        "_mps_emptyCache": lambda: None,
        "_mps_deviceSynchronize": lambda: None,
        "_mps_setMemoryFraction": lambda fraction: None,  # noqa: ARG005
        "_mps_currentAllocatedMemory": device.allocated_bytes,
        "_mps_driverAllocatedMemory": device.allocated_bytes,
        "_mps_recommendedMaxMemory": lambda: _BYTES_OF_THE_MACHINE,
        "_mps_get_default_generator": device.default_generator,
        "_mps_acquireEvent": _acquire_event,
        "_mps_releaseEvent": lambda number: None,  # noqa: ARG005
        "_mps_recordEvent": lambda number: None,  # noqa: ARG005
        "_mps_waitForEvent": lambda number: None,  # noqa: ARG005
        "_mps_synchronizeEvent": lambda number: None,  # noqa: ARG005
        "_mps_queryEvent": lambda number: True,  # noqa: ARG005
    }
    for name, value in bindings.items():
        setattr(torch._C, name, value)
    torch.backends.mps.is_available.cache_clear()


def _acquire_event(enable_timing: bool) -> int:
    """Timing events of torch 2.13 can raise, and wait for ever where one was synchronised before it is read."""
    if enable_timing:
        raise RuntimeError("a timing event on MPS: torch's elapsed_time raises or hangs there (pytorch#162872)")
    return 0
