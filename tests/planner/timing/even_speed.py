"""A device whose times can be computed in the head."""

from dataclasses import dataclass

from foretune.planner.timing.host_operators import Issuer
from foretune.planner.timing.speed import Collective, Evidence, ProductFormat


@dataclass(frozen=True)
class EvenSpeed:
    """Everything takes time in proportion to what it does; nothing has a latency unless it is given."""

    link_bytes_per_s: float = 1e9
    latency_s: float = 0.0
    launch: float = 0.0

    @property
    def evidence(self) -> Evidence:
        return "data sheet"

    def product_s(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        return 2 * batch * m * n * k / 1e12

    def convolution_s(
        self, products: float, batch: float, m: float, n: float, k: float, number_format: ProductFormat
    ) -> float:
        return products * self.product_s(batch, m, n, k, number_format)

    def attention_s(
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
        return (10 if is_backward else 4) * batch * heads * queries * keys * head_dim / 1e12

    def bytes_s(self, num_bytes: float) -> float:
        return num_bytes / 1e12

    def host_bytes_s(self, num_bytes: float) -> float:
        return num_bytes / 1e10

    def launch_s(
        self, *, has_adapters: bool = False, is_recomputed: bool = False, issued_by: Issuer = "modules"
    ) -> float:
        return self.launch

    def update_s(self) -> float:
        return 0.0

    def copy_s(self, num_bytes: float) -> float:
        return num_bytes / 1e10

    def collective_s(self, kind: Collective, num_bytes: float, num_devices: int) -> float:
        passes = (2 if kind == "all_reduce" else 1) * (num_devices - 1) / num_devices
        return self.latency_s + passes * num_bytes / self.link_bytes_per_s
