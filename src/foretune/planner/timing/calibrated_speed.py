"""The speed of a device by what `foretune calibrate` measured on this machine."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeVar

from foretune.core.values.device_profile import (
    DeviceProfile,
    MeasuredFormat,
    MemoryOperator,
    ProductPoint,
)
from foretune.planner.timing.grid import Grid, Sizes
from foretune.planner.timing.host_operators import Issuer
from foretune.planner.timing.speed import Collective, Evidence, NotKnown, ProductFormat

_MIXED: Mapping[MemoryOperator, float] = {"add": 0.7, "layer_norm": 0.1, "gelu": 0.1, "cast": 0.1}
"""Share of each kernel in the bytes of a step's pointwise operators: most are sums, products and copies."""
_RERUN = "Run: foretune calibrate"
_UPDATE_OPERATORS = 2
"""For each tensor, which a trace has: the norm for clipping, and the count of steps."""
_MOST_FORWARD_PRODUCTS = 1.5
_NEARNESS = 1.0
_Key = TypeVar("_Key")
_Point = tuple[tuple[float, ...], float]
"""Logarithms of sizes, and of a ratio measured there."""


class CalibratedSpeed:
    """Times of kernels from a profile. Where `profile.kind` is "cpu", dispatching adds to them."""

    def __init__(self, profile: DeviceProfile, *, attention_format: MeasuredFormat = "bf16") -> None:
        """`attention_format` is the one that the step computes attention in."""
        self.profile = profile
        self._attention_format = attention_format

    @property
    def evidence(self) -> Evidence:
        return "measured here"

    def product_s(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        if number_format == "tf32" and "tf32" not in self._single:
            number_format = "fp32"  # what torch does on a device without TF32
        single = self._of_format(self._single, number_format, "matrix products").at((m, n, k))
        if batch <= 1:
            return single
        return batch * single * self._batching(batch, m, n, k, number_format)

    def convolution_s(
        self, products: float, batch: float, m: float, n: float, k: float, number_format: ProductFormat
    ) -> float:
        """Of a convolution in groups, each group is a product."""
        # Without a measured one, a convolution is taken to be as fast as the products.
        is_backward = products > _MOST_FORWARD_PRODUCTS
        points = self._convolutions.get((number_format, is_backward), ())
        ratio = _nearer_ones_more((m, n, k), points) if points else 1.0
        return ratio * products * self.product_s(batch, m, n, k, number_format)

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
        del is_masked  # only attention without a mask is measured
        grid = self._attention.get((self._attention_format, is_backward))
        if grid is None:
            raise NotKnown(f"attention in {self._attention_format} was not measured on {self.profile.device}. {_RERUN}")
        return grid.at((batch * heads, queries, keys, head_dim))

    def bytes_s(self, num_bytes: float) -> float:
        shares = {name: share for name, share in _MIXED.items() if name in self._memory}
        if not shares:
            raise NotKnown(f"memory-bound kernels were not measured on {self.profile.device}. {_RERUN}")
        total = sum(share * self.memory_s(name, num_bytes) for name, share in shares.items())
        return total / sum(shares.values())

    def memory_s(self, operator: MemoryOperator, num_bytes: float) -> float:
        """One sort of memory-bound kernel."""
        return self._memory[operator].at((num_bytes,))

    def host_bytes_s(self, num_bytes: float) -> float:
        """On a CPU, host and device are the same cores."""
        if self.profile.kind != "cpu":
            raise NotKnown(f"what the host of {self.profile.device} computes was not measured")
        return self.bytes_s(num_bytes)

    def launch_s(
        self, *, has_adapters: bool = False, is_recomputed: bool = False, issued_by: Issuer = "modules"
    ) -> float:
        del issued_by  # the mean of a model was measured
        dispatch = self.profile.dispatch
        kept = (dispatch.with_adapters if has_adapters else None) or dispatch.with_autograd
        if not is_recomputed:
            return kept.seconds
        measured = dispatch.recomputed_with_adapters if has_adapters else dispatch.recomputed
        return kept.seconds if measured is None else measured.seconds

    def update_s(self) -> float:
        update, call = self.profile.dispatch.update, self.profile.dispatch.call
        if update is None or self.profile.kind != "cpu":
            return 0.0
        return max(0.0, update.seconds - _UPDATE_OPERATORS * call.seconds)

    def copy_s(self, num_bytes: float) -> float:
        if self._copies is None:
            raise NotKnown(f"copies between host and device were not measured on {self.profile.device}")
        return self._copies.at((num_bytes,))

    def collective_s(self, kind: Collective, num_bytes: float, num_devices: int) -> float:
        grid = self._collectives.get((kind, num_devices))
        if grid is None:
            raise NotKnown(f"{kind} among {num_devices} devices was not measured on {self.profile.device}")
        return grid.at((num_bytes,))

    @cached_property
    def _single(self) -> Mapping[str, Grid]:
        return _grids((p.number_format, (p.m, p.n, p.k), p.timing.seconds) for p in self._products(batched=False))

    @cached_property
    def _attention(self) -> Mapping[tuple[str, bool], Grid]:
        return _grids(
            ((p.number_format, p.is_backward), (p.heads, p.queries, p.keys, p.head_dim), p.timing.seconds)
            for p in self.profile.attention
        )

    @cached_property
    def _memory(self) -> Mapping[MemoryOperator, Grid]:
        return _grids((p.operator, (p.num_bytes,), p.timing.seconds) for p in self.profile.memory)

    @cached_property
    def _copies(self) -> Grid | None:
        return _grids((None, (p.num_bytes,), p.timing.seconds) for p in self.profile.copies).get(None)

    @cached_property
    def _collectives(self) -> Mapping[tuple[str, int], Grid]:
        return _grids(((p.kind, p.num_devices), (p.num_bytes,), p.timing.seconds) for p in self.profile.collectives)

    @cached_property
    def _convolutions(self) -> Mapping[tuple[str, bool], list[_Point]]:
        """Logarithms of the time of convolutions over that of their products, by size."""
        found: dict[tuple[str, bool], list[_Point]] = defaultdict(list)
        for p in self.profile.convolutions:
            as_product_s = (2 if p.is_backward else 1) * self.product_s(1, p.m, p.n, p.k, p.number_format)
            place = tuple(math.log(size) for size in (p.m, p.n, p.k))
            found[p.number_format, p.is_backward].append((place, math.log(p.timing.seconds / as_product_s)))
        return found

    def _batching(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        """Time of batched products over that of as many single ones."""
        points = self._batched.get(number_format, ())
        return _nearer_ones_more((batch, m, n, k), points) if points else 1.0

    @cached_property
    def _batched(self) -> Mapping[str, list[_Point]]:
        found: dict[str, list[_Point]] = defaultdict(list)
        for p in self._products(batched=True):
            singles_s = p.batch * self.product_s(1, p.m, p.n, p.k, p.number_format)
            place = tuple(math.log(size) for size in (p.batch, p.m, p.n, p.k))
            found[p.number_format].append((place, math.log(p.timing.seconds / singles_s)))
        return found

    def _products(self, *, batched: bool) -> Iterable[ProductPoint]:
        return (point for point in self.profile.products if (point.batch > 1) == batched)

    def _of_format(self, grids: Mapping[str, Grid], number_format: str, what: str) -> Grid:
        if number_format not in grids:
            raise NotKnown(f"{what} in {number_format} were not measured on {self.profile.device}. {_RERUN}")
        return grids[number_format]


def _nearer_ones_more(sizes: tuple[float, ...], points: Iterable[_Point]) -> float:
    """The mean of measured ratios, nearer ones more. Exact at a measured point."""
    weighted, total = 0.0, 0.0
    place = [math.log(size) for size in sizes]
    for other, logarithm in points:
        distance = sum((a - b) ** 2 for a, b in zip(place, other, strict=True)) ** _NEARNESS
        if not distance:
            return math.exp(logarithm)
        weighted += logarithm / distance
        total += 1 / distance
    return math.exp(weighted / total)


def _grids(points: Iterable[tuple[_Key, Sizes, float]]) -> dict[_Key, Grid]:
    found: dict[_Key, dict[Sizes, float]] = {}
    for key, sizes, seconds in points:
        found.setdefault(key, {})[sizes] = seconds
    return {key: Grid(seconds) for key, seconds in found.items()}
