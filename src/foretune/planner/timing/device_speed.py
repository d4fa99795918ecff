"""The speed of a device by what was published: tables of kernel times, or data sheets with what the tables teach."""

from functools import cached_property, lru_cache

from foretune.catalog.caches import last_level_bytes
from foretune.catalog.devices import Device
from foretune.catalog.kernel_tables import SdpaKernel
from foretune.planner.timing.attention import AttentionTimes, attention_times, masked_attention
from foretune.planner.timing.collectives import collective_s
from foretune.planner.timing.formulas import bandwidth
from foretune.planner.timing.host_operators import HOST_S_PER_OPERATOR, Issuer, over_a_module_operator
from foretune.planner.timing.products import ProductTimes, kin_of, same_rates
from foretune.planner.timing.speed import Collective, DeviceSpeed, Evidence, NotKnown, ProductFormat
from foretune.planner.transfers import host_link

KERNEL_S = 2e-6
"""What a kernel takes besides moving its bytes: to start, and to fill the device. From general knowledge."""
CACHED_SHARE = 0.5
"""A kernel whose tensors take less than this share of the last level of cache finds them there: what it reads was
written just before, and what it writes must fit beside it."""
CACHE_RATE = 3.0
"""Bandwidth of that cache over the memory's. From general knowledge: two to five."""
USABLE_BANDWIDTH_SHARE = 0.85
"""Of the data sheet's memory bandwidth. Memory-bound products of the tables (m up to 8, 8192 x 8192 weights and more)
reach 0.80 to 0.93 at best, and the formula for products 0.89.
"""
USABLE_HOST_LINK_SHARE = 0.8
"""Of the data sheet's one-way rate, from pinned memory: packets have headers. From general knowledge
(25 to 26 of 32 GB/s over PCIe 4.0 x16), not measured here.
"""
COPY_LATENCY_S = 10e-6

HOST_BYTES_PER_S = 20e9
"""What the operators of an offloaded optimizer read and write a second on the host, unfused and on all cores of a
server processor: from general knowledge, not measured here.
"""

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
        self.collective_s = lru_cache(_CACHED_CALLS)(self._collective_s)

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

    def convolution_s(
        self, products: float, batch: float, m: float, n: float, k: float, number_format: ProductFormat
    ) -> float:
        return products * self.product_s(batch, m, n, k, number_format)

    def _product_s(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        if number_format == "tf32" and self.device.tf32_dense_tflops is None:
            number_format = "fp32"  # what torch does there
        return self._products.seconds(batch, m, n, k, number_format)

    def _attention_s(
        self,
        batch: float,
        heads: float,
        queries: float,
        keys: float,
        head_dim: float,
        *,
        is_backward: bool,
        is_masked: bool = False,
    ) -> float:
        seconds = self._attention.seconds(batch, heads, queries, keys, head_dim, is_backward=is_backward)
        return seconds * masked_attention(self.device, self._sdpa, is_backward=is_backward) if is_masked else seconds

    @cached_property
    def _usable_bytes_per_s(self) -> float:
        return bandwidth(self.device) * USABLE_BANDWIDTH_SHARE

    @cached_property
    def _cached_bytes(self) -> float:
        return CACHED_SHARE * last_level_bytes(self.device.name)

    def bytes_s(self, num_bytes: float) -> float:
        rate = CACHE_RATE if num_bytes < self._cached_bytes else 1.0
        return KERNEL_S + num_bytes / (rate * self._usable_bytes_per_s)

    def host_bytes_s(self, num_bytes: float) -> float:
        return num_bytes / HOST_BYTES_PER_S

    def launch_s(
        self, *, has_adapters: bool = False, is_recomputed: bool = False, issued_by: Issuer = "modules"
    ) -> float:
        # That hooks run for each tensor saved in a checkpointed block is not known to cost more than the learnt factor.
        del has_adapters, is_recomputed
        return HOST_S_PER_OPERATOR * over_a_module_operator(issued_by)

    def update_s(self) -> float:
        return 0.0  # on an accelerator, one operator updates many tensors

    def copy_s(self, num_bytes: float) -> float:
        if self.device.kind in ("cpu", "mps"):
            raise NotKnown(f"a copy between host and {self.device.title}: they share their memory")
        return COPY_LATENCY_S + num_bytes / (host_link(self.device).gb_per_s * 1e9 * USABLE_HOST_LINK_SHARE)

    def _collective_s(self, kind: Collective, num_bytes: float, num_devices: int) -> float:
        return collective_s(self.device, kind, num_bytes, num_devices)


@lru_cache(64)
def speed_of(device: Device, sdpa: SdpaKernel = "cudnn") -> DeviceSpeed:
    """The device's speed by what was published. `sdpa` is what PyTorch's attention runs on Hopper."""
    # A limit of memory changes no speed, and tables know the card by its name in the catalogue.
    return PublishedSpeed(device.model_copy(update={"name": device.row_name}), sdpa)
