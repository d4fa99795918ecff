"""The speed of a device by what was published: tables of kernel times, or data sheets with what the tables teach."""

from functools import cached_property, lru_cache

from foretune.catalog.devices import Device
from foretune.planner.timing.attention import AttentionTimes, SdpaKernel, attention_times
from foretune.planner.timing.collectives import collective_s
from foretune.planner.timing.formulas import bandwidth
from foretune.planner.timing.products import ProductTimes, kin_of, same_rates
from foretune.planner.timing.speed import Collective, DeviceSpeed, Evidence, NotKnown, ProductFormat
from foretune.planner.transfers import host_link

HOST_S_PER_OPERATOR = 6e-6
"""Host time of one operator of eager PyTorch with autograd: 5 to 7 us on server processors, from general knowledge; not
measured here. `foretune calibrate` measures it.
"""
BYTES_LATENCY_S = 3e-6
"""The least time of a memory-bound kernel: the source's rule of thumb, and the time of its smallest products."""
USABLE_BANDWIDTH_SHARE = 0.85
"""Of the data sheet's memory bandwidth. Memory-bound products of the tables (m up to 8, 8192 x 8192 weights and more)
reach 0.80 to 0.93 at best, and the formula for products 0.89.
"""
USABLE_HOST_LINK_SHARE = 0.8
"""Of the data sheet's one-way rate, from pinned memory: packets have headers. From general knowledge
(25 to 26 of 32 GB/s over PCIe 4.0 x16), not measured here.
"""
COPY_LATENCY_S = 10e-6

_CACHED_CALLS = 2**17


class PublishedSpeed:
    """Implements `DeviceSpeed`. Each question is answered once and remembered: a search asks the same ones often."""

    def __init__(self, device: Device, sdpa: SdpaKernel) -> None:
        self.device = device
        self._sdpa: SdpaKernel = sdpa
        kin = kin_of(device)
        self._has_table = kin is not None and same_rates(device, kin)
        self.product_s = lru_cache(_CACHED_CALLS)(self._product_s)
        self.attention_s = lru_cache(_CACHED_CALLS)(self._attention_s)

    @property
    def evidence(self) -> Evidence:
        """kernel tables also for a card that differs from the measured one in the amount of memory only."""
        return "kernel tables" if self._has_table else "data sheet"

    @cached_property
    def _products(self) -> ProductTimes:
        return ProductTimes(self.device)

    @cached_property
    def _attention(self) -> AttentionTimes:
        return attention_times(self.device, self._sdpa)

    def _product_s(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        return self._products.seconds(batch, m, n, k, number_format)

    def _attention_s(
        self, batch: float, heads: float, queries: float, keys: float, head_dim: float, *, is_backward: bool
    ) -> float:
        return self._attention.seconds(batch, heads, queries, keys, head_dim, is_backward=is_backward)

    @cached_property
    def _usable_bytes_per_s(self) -> float:
        return bandwidth(self.device) * USABLE_BANDWIDTH_SHARE

    def bytes_s(self, num_bytes: float) -> float:
        return max(BYTES_LATENCY_S, num_bytes / self._usable_bytes_per_s)

    def host_bytes_s(self, num_bytes: float) -> float:
        raise NotKnown("the speed of the host's memory, in which an offloaded optimizer works")

    def launch_s(self) -> float:
        return HOST_S_PER_OPERATOR

    def copy_s(self, num_bytes: float) -> float:
        if self.device.kind in ("cpu", "mps"):
            raise NotKnown(f"a copy between host and {self.device.title}: they share their memory")
        return COPY_LATENCY_S + num_bytes / (host_link(self.device).gb_per_s * 1e9 * USABLE_HOST_LINK_SHARE)

    def collective_s(self, kind: Collective, num_bytes: float, num_devices: int) -> float:
        return collective_s(self.device, kind, num_bytes, num_devices)


@lru_cache(64)
def speed_of(device: Device, sdpa: SdpaKernel = "cudnn") -> DeviceSpeed:
    """The device's speed by what was published. `sdpa` is what PyTorch's attention runs on Hopper."""
    return PublishedSpeed(device, sdpa)
