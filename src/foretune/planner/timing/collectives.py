"""Times of collectives among the devices of one machine: NCCL as measured, or by the link's data sheet."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from foretune.catalog.devices import Device
from foretune.catalog.kernel_tables import LOG_STEPS, KernelTable, kernel_table
from foretune.planner.pcie import PcieLink
from foretune.planner.timing.products import kin_of
from foretune.planner.timing.speed import Collective, NotKnown
from foretune.planner.transfers import host_link

_LINKS = ("NVLink", "Infinity Fabric")
_BRIDGE = "NVLink bridge"
USABLE_LINK_SHARE = 0.7
"""Of one direction, all_gather of 512 MiB among eight: A100 0.68, B200 0.69, H100 0.74."""
_USABLE_PCIE_SHARE = {2: 0.5}
_USABLE_PCIE_SHARE_OF_MORE = 0.36
"""Of one direction: RTX PRO 6000 0.50 between two cards, 0.37 among four, 0.36 among eight. The L40S's machine reaches
0.03 among eight, so this depends on the machine more than on the card.
"""
_LATENCY_S, _LATENCY_PER_DEVICE_S = 3e-6, 1.4e-6
"""all_gather of 512 bytes: 5 to 9 us between two devices, 10 to 16 among eight."""


def ring_factor(kind: Collective, num_devices: int) -> float:
    """How often the buffer passes over each device's link."""
    return (2 if kind == "all_reduce" else 1) * (num_devices - 1) / num_devices


def collective_s(device: Device, kind: Collective, num_bytes: float, num_devices: int) -> float:
    """By the table of this device, or of a card with the same chip and link. PCIe depends on the machine too much."""
    assert num_devices >= 1, num_devices
    if num_devices == 1 or num_bytes <= 0:
        return 0.0
    table = _table_of(device)
    if table is not None:
        return _by_table(table, kind, num_bytes, num_devices)
    return _by_data_sheet(device, kind, num_bytes, num_devices)


def _by_table(table: KernelTable, kind: Collective, num_bytes: float, num_devices: int) -> float:
    counts = sorted(count for known, count in table.collectives if known == kind)
    times = [_at_size(table.message_bytes, table.collectives[kind, count], num_bytes) for count in counts]
    if num_devices >= counts[-1]:
        return times[-1] * ring_factor(kind, num_devices) / ring_factor(kind, counts[-1])
    upper = bisect_right(counts, num_devices)
    lower = upper - 1
    share = math.log(num_devices / counts[lower]) / math.log(counts[upper] / counts[lower])
    return math.exp((1 - share) * math.log(times[lower]) + share * math.log(times[upper]))


def _at_size(sizes: Sequence[int], log_us: Sequence[int], num_bytes: float) -> float:
    """Linear in logarithms; the smallest size's time below, in proportion above."""
    if num_bytes >= sizes[-1]:
        return math.exp(log_us[-1] / LOG_STEPS) * 1e-6 * num_bytes / sizes[-1]
    if num_bytes <= sizes[0]:
        return math.exp(log_us[0] / LOG_STEPS) * 1e-6
    upper = bisect_right(sizes, num_bytes)
    share = math.log(num_bytes / sizes[upper - 1]) / math.log(sizes[upper] / sizes[upper - 1])
    return math.exp((log_us[upper - 1] * (1 - share) + log_us[upper] * share) / LOG_STEPS) * 1e-6


def over_pcie_s(link: PcieLink, kind: Collective, num_bytes: float, num_devices: int) -> float:
    """Over a PCIe link that was stated, whatever the devices are."""
    if num_devices == 1 or num_bytes <= 0:
        return 0.0
    return _over_link_s(link.gb_per_s * 1e9 * usable_pcie_share(num_devices), kind, num_bytes, num_devices)


def has_fast_link(device: Device) -> bool:
    """Whether NVLink or Infinity Fabric connects several of these."""
    return device.interconnect.startswith(_LINKS)


@dataclass(frozen=True)
class LinkInside:
    """What connects the devices of one machine, for a person to check."""

    name: str
    is_measured: bool
    """Whether NCCL was measured on this chip and link."""


def link_inside(device: Device, num_devices: int) -> LinkInside:
    """Returns the link that `collective_s` assumes. Raises `NotKnown` if it has none."""
    if has_fast_link(device) and (num_devices == 2 or not device.interconnect.startswith(_BRIDGE)):  # noqa: PLR2004
        return LinkInside(device.interconnect, is_measured=_table_of(device) is not None)
    _bytes_per_s(device, num_devices)
    return LinkInside(host_link(device).name, is_measured=_table_of(device) is not None)


def _table_of(device: Device) -> KernelTable | None:
    kin = kin_of(device)
    has_link = device.interconnect.startswith(_LINKS) and not device.interconnect.startswith(_BRIDGE)
    if kin is None or not (kin is device or (has_link and kin.interconnect == device.interconnect)):
        return None
    return kernel_table(kin.name)


def _by_data_sheet(device: Device, kind: Collective, num_bytes: float, num_devices: int) -> float:
    return _over_link_s(_bytes_per_s(device, num_devices), kind, num_bytes, num_devices)


def _over_link_s(bytes_per_s: float, kind: Collective, num_bytes: float, num_devices: int) -> float:
    latency_s = _LATENCY_S + _LATENCY_PER_DEVICE_S * num_devices
    return latency_s + ring_factor(kind, num_devices) * num_bytes / bytes_per_s


def usable_pcie_share(num_devices: int) -> float:
    """What collectives reach of one direction of PCIe."""
    return _USABLE_PCIE_SHARE.get(num_devices, _USABLE_PCIE_SHARE_OF_MORE)


def _bytes_per_s(device: Device, num_devices: int) -> float:
    """One way. A bridge connects two cards; more of them use PCIe."""
    both_ways = device.interconnect_bidirectional_gb_per_s
    is_link = device.interconnect.startswith(_LINKS) and both_ways is not None
    if is_link and both_ways is not None and (num_devices == 2 or not device.interconnect.startswith(_BRIDGE)):  # noqa: PLR2004
        return both_ways / 2 * 1e9 * USABLE_LINK_SHARE
    if device.kind in ("cpu", "mps") or not (is_link or device.interconnect.startswith("PCIe")):
        raise NotKnown(f"the link between several {device.title} (interconnect)")
    return host_link(device).gb_per_s * 1e9 * usable_pcie_share(num_devices)
