"""How devices are connected: which of them share a fast link, and what the network gives each of them beyond it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from foretune.catalog.devices import Device
from foretune.core.units import share_text
from foretune.planner.pcie import PcieLink
from foretune.planner.timing.collectives import (
    USABLE_LINK_SHARE,
    has_fast_link,
    link_inside,
    over_pcie_s,
    usable_pcie_share,
)
from foretune.planner.timing.speed import Collective, DeviceSpeed, NotKnown
from foretune.planner.timing.stated_links import AS_USUAL, StatedLinks

USABLE_NETWORK_SHARE = 0.9
"""Of a network adapter's rate, for large messages: packets have headers. General knowledge, not measured here."""
HOP_S = 10e-6
"""One message from machine to machine, both network adapters and NCCL included: the rule of thumb of the published
kernel tables. Not measured here.
"""
_GBIT_PER_GB = 8


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """Devices in groups with a fast link inside; a network connects the groups."""

    domain_devices: int
    """Devices that the fast link connects: those of one machine, or of an NVLink rack."""
    gbit_per_s: float
    """Of the network, one way, for each device."""
    is_assumed: bool
    """Whether this is the usual server of the device, not what the user stated."""
    pcie: PcieLink | None = None
    """What the user stated for the devices of one machine; None leaves it to the device."""

    @property
    def network_bytes_per_s(self) -> float:
        return self.gbit_per_s * 1e9 / _GBIT_PER_GB * USABLE_NETWORK_SHARE


_PER_MACHINE = 8
_USUAL: dict[str, tuple[int, float]] = {
    "a100-40gb-sxm": (_PER_MACHINE, 200.0),
    "a100-80gb-sxm": (_PER_MACHINE, 200.0),
    "h100-sxm": (_PER_MACHINE, 400.0),
    "h100-sxm-96gb": (_PER_MACHINE, 400.0),
    "h200-sxm": (_PER_MACHINE, 400.0),
    "b200": (_PER_MACHINE, 400.0),
    "gb200": (72, 400.0),
    "gb300": (72, 800.0),
    "l40s": (_PER_MACHINE, 100.0),
    "mi300x": (_PER_MACHINE, 400.0),
    "mi325x": (_PER_MACHINE, 400.0),
}
"""Devices in a domain and Gbit/s for each, as vendors' own servers have them: DGX A100 200 (ConnectX-6), DGX H100,
DGX H200 and DGX B200 400 (ConnectX-7), GB200 NVL72 400, GB300 NVL72 800 (ConnectX-8). OVX with eight L40S: four of 200.
MI300X platforms: one of 400 for each device. General knowledge; the data sheets were not opened.
"""
_OTHERS: tuple[int, float] = (_PER_MACHINE, 25.0)
"""Everything else: eight cards share one adapter of 200 Gb/s."""


def interconnect_of(device: Device, links: StatedLinks = AS_USUAL) -> Interconnect:
    """Returns the usual server of a device; what the user stated comes before it.

    Raises `NotKnown` where the device cannot have what was stated.
    """
    usual_devices, usual_gbit_per_s = _USUAL.get(device.row_name, _OTHERS)
    if links.nvlink and not has_fast_link(device):
        raise NotKnown(f"NVLink between several {device.title}: the catalogue has {device.interconnect} for it")
    return Interconnect(
        domain_devices=usual_devices if links.pcie is None else _PER_MACHINE,
        gbit_per_s=links.gbit_per_s or usual_gbit_per_s,
        is_assumed=links.gbit_per_s is None,
        pcie=links.pcie,
    )


@dataclass(frozen=True)
class Group:
    """Devices that take part in a collective: some in each of several domains."""

    inside: int
    domains: int

    @property
    def size(self) -> int:
        return self.inside * self.domains


def group_of(num_devices: int, interconnect: Interconnect) -> Group:
    """Returns neighbours that fill one domain after the other."""
    domains = math.ceil(num_devices / interconnect.domain_devices)
    return Group(math.ceil(num_devices / domains), domains)


def collective_s(
    kind: Collective, num_bytes: float, group: Group, speed: DeviceSpeed, interconnect: Interconnect
) -> float:
    """Returns the time of one collective of NCCL. `num_bytes` is the whole buffer.

    Across domains chunks pass through both links at once, so the slower link counts. Of what goes round, each device's
    network adapter carries its share of its domain's part. Latency of all_reduce grows as NCCL's trees do, with the
    logarithm of the domains, up and down; that of all_gather and reduce_scatter as its rings do, with their number.
    """
    if group.size == 1 or num_bytes <= 0:
        return 0.0
    inside_s = _inside_s(kind, num_bytes, group.inside, speed, interconnect)
    if group.domains == 1:
        return inside_s
    passes = (2 if kind == "all_reduce" else 1) * (group.domains - 1) / group.domains
    across_s = passes * num_bytes / group.inside / interconnect.network_bytes_per_s
    hops = 2 * math.ceil(math.log2(group.domains)) if kind == "all_reduce" else group.domains - 1
    return max(inside_s, across_s) + hops * HOP_S


def _inside_s(
    kind: Collective, num_bytes: float, num_devices: int, speed: DeviceSpeed, interconnect: Interconnect
) -> float:
    """Returns the time among the devices of one machine."""
    if num_devices == 1:
        return 0.0
    if interconnect.pcie is not None:
        return over_pcie_s(interconnect.pcie, kind, num_bytes, num_devices)
    return speed.collective_s(kind, num_bytes, num_devices)


def connection_words(device: Device, num_devices: int, links: StatedLinks = AS_USUAL) -> Iterator[str]:
    """Yields what a step of several devices assumes about their links."""
    found = interconnect_of(device, links)
    group = group_of(num_devices, found)
    if group.inside > 1:
        together = "both" if num_devices == 2 else f"all {num_devices}"  # noqa: PLR2004
        where = f"the {group.inside} devices of a machine" if group.domains > 1 else f"{together} in one machine"
        if found.pcie is not None:
            source = "as given" if links.is_pcie_given else "the slowest of their slots"
            yield f"{where}, connected by {found.pcie.name} ({source}; NCCL reaches {_pcie_words(group.inside)})"
        else:
            inside = link_inside(device.model_copy(update={"name": device.row_name}), group.inside)
            share = "as NCCL was measured on it" if inside.is_measured else _share_words(inside.name, group.inside)
            yield f"{where}, connected by {inside.name} ({share})"
    if group.domains > 1:
        source = "the usual server of this device" if found.is_assumed else "as given"
        yield f"{group.domains} machines with {found.gbit_per_s:g} Gbit/s between them for each device ({source})"


def _share_words(link: str, num_devices: int) -> str:
    if link.startswith("PCIe"):
        return f"NCCL reaches {_pcie_words(num_devices)}; yours: foretune plan --interconnect pcie=4.0x16"
    bridge = "; without a bridge: foretune plan --interconnect pcie=4.0x16" if "bridge" in link else ""
    return f"NCCL reaches {share_text(USABLE_LINK_SHARE)} of its data sheet{bridge}"


def _pcie_words(num_devices: int) -> str:
    return f"{share_text(usable_pcie_share(num_devices))} of its data sheet, as between RTX PRO 6000"
