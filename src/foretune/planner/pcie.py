"""PCIe links as people write them: a generation and lanes, 4.0x16."""

import re
from dataclasses import dataclass

_GB_PER_S_OF_PCIE_3 = 16.0
"""One way over 16 lanes, as the catalogue rounds it. Each generation doubles it."""


@dataclass(frozen=True)
class PcieLink:
    """A slot."""

    name: str
    gb_per_s: float
    """One way, by the data sheet."""


def pcie_link(text: str) -> PcieLink | None:
    """Returns the link that `4.0x16` stands for; None if it is not one."""
    match = re.fullmatch(r"([1-6])(?:\.0)?x(1|2|4|8|16)", text)
    if match is None:
        return None
    generation, lanes = match.groups()
    gb_per_s = _GB_PER_S_OF_PCIE_3 * 2.0 ** (int(generation) - 3) * int(lanes) / 16
    return PcieLink(f"PCIe {generation}.0 x{lanes}", gb_per_s)
