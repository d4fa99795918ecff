"""`--interconnect`: how the user's devices are connected, inside a machine and between machines."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from foretune.core.errors import UserError
from foretune.planner.pcie import PcieLink, pcie_link

_BITS_PER_BYTE = 8
_EXAMPLE = "foretune plan ... --interconnect nvlink,400Gb/s, or foretune plan ... --interconnect pcie=4.0x16"
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(gb/s|gbit/s|gbps)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class StatedLinks:
    """What the user stated; None is the usual server of the device."""

    nvlink: bool = False
    """The devices of a machine are connected by NVLink, or Infinity Fabric."""
    pcie: PcieLink | None = None
    """The devices of a machine are connected by PCIe alone."""
    is_pcie_given: bool = True
    """False for cards of different kinds: nothing but PCIe connects them."""
    gbit_per_s: float | None = None
    """Of the network between machines, for each device, one way."""


AS_USUAL = StatedLinks()


def links_named(texts: Iterable[str]) -> StatedLinks:
    """Parses `--interconnect`: nvlink or pcie=4.0x16, and a rate of the network such as 400Gb/s."""
    nvlink, pcie, gbit_per_s = False, None, None
    for typed in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        key, _, value = typed.lower().partition("=")
        rate = _gbit_per_s(typed)
        if rate is not None and gbit_per_s is None:
            gbit_per_s = rate
        elif key == "nvlink" and not value and pcie is None:
            nvlink = True
        elif key == "pcie" and pcie is None and not nvlink and (link := pcie_link(value)) is not None:
            pcie = link
        else:
            raise UserError(
                f"foretune plan --interconnect {typed}: not nvlink, a PCIe slot, or the rate of the network for each "
                f"device, each once. Run: {_EXAMPLE}"
            )
    return StatedLinks(nvlink=nvlink, pcie=pcie, gbit_per_s=gbit_per_s)


def _gbit_per_s(typed: str) -> float | None:
    """Returns the rate in Gbit/s. As in data sheets of network adapters, Gb/s are bits and GB/s are bytes."""
    match = _RATE.fullmatch(typed)
    if match is None or float(match.group(1)) <= 0:
        return None
    return float(match.group(1)) * (_BITS_PER_BYTE if match.group(2)[1] == "B" else 1)
