"""Which number formats an architecture multiplies in hardware."""

from typing import Literal

from foretune.catalog.devices import Device
from foretune.catalog.overheads import architecture

NumberFormat = Literal["bf16", "fp8"]

# NVIDIA: bf16 came with Ampere (compute capability 8.0), fp8 with Ada and Hopper (8.9 and 9.0): CUDA C++ programming
# guide. AMD: fp8 came with CDNA 3: CDNA 3 instruction set reference.
_MULTIPLIED: dict[str, frozenset[NumberFormat]] = {
    "pascal": frozenset(),
    "volta": frozenset(),
    "turing": frozenset(),
    "ampere": frozenset({"bf16"}),
    "ada": frozenset({"bf16", "fp8"}),
    "hopper": frozenset({"bf16", "fp8"}),
    "blackwell": frozenset({"bf16", "fp8"}),
    "cdna2": frozenset({"bf16"}),
    "cdna3": frozenset({"bf16", "fp8"}),
    "cdna4": frozenset({"bf16", "fp8"}),
}


def multiplies(device: Device, number_format: NumberFormat) -> bool | None:
    """Whether the device has units for products in this format; None where its architecture is not known here."""
    formats = _MULTIPLIED.get(architecture(device))
    return None if formats is None else number_format in formats
