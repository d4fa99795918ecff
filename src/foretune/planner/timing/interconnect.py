"""How devices are connected: which of them share a fast link, and what the network gives each of them beyond it."""

import math
from dataclasses import dataclass

from foretune.catalog.devices import Device
from foretune.core.errors import UserError
from foretune.planner.timing.speed import Collective, DeviceSpeed

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


def interconnect_of(
    device: Device, *, gbit_per_s: float | None = None, domain_devices: int | None = None
) -> Interconnect:
    """Returns the usual server of a device; what is given comes before it. `gbit_per_s` is for each device, one way."""
    for name, value in (("rate of the network", gbit_per_s), ("number of devices in a machine", domain_devices)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UserError(f"The {name} must be a positive number, not {value}. For example: 400 (Gbit/s per device)")
    usual_devices, usual_gbit_per_s = _USUAL.get(device.row_name, _OTHERS)
    return Interconnect(
        domain_devices=domain_devices or usual_devices,
        gbit_per_s=gbit_per_s or usual_gbit_per_s,
        is_assumed=gbit_per_s is None,
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
    inside_s = speed.collective_s(kind, num_bytes, group.inside) if group.inside > 1 else 0.0
    if group.domains == 1:
        return inside_s
    passes = (2 if kind == "all_reduce" else 1) * (group.domains - 1) / group.domains
    across_s = passes * num_bytes / group.inside / interconnect.network_bytes_per_s
    hops = 2 * math.ceil(math.log2(group.domains)) if kind == "all_reduce" else group.domains - 1
    return max(inside_s, across_s) + hops * HOP_S
