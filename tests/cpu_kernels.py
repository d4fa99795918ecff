"""How near a forecast of a CPU's memory can be on this processor.

The rules for what operators of a CPU use inside (`foretune.trace.cpu_workspace`) were measured on processors with AMX.
Others run other kernels: on a Cascade Lake, steps in bf16 and with convolutions were up to 15 % off.
"""

import torch

_OTHER_KERNELS = 0.20


def has_measured_kernels() -> bool:
    """Whether this processor runs the kernels that the rules were measured on."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_amx_tile_supported()


def tolerance(share: float) -> float:
    """The share by which a forecast may be off: the given one with the measured kernels, a wide one with others."""
    return share if has_measured_kernels() else max(share, _OTHER_KERNELS)
