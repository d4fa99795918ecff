"""Times of matrix products: looked up between measured shapes, or by the formula."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

from foretune.catalog.devices import Device, devices
from foretune.catalog.kernel_tables import LOG_STEPS, KernelTable, ProductGrid, estimates, kernel_table
from foretune.catalog.kernel_tables import kernel_table_names as tables
from foretune.planner.timing.formulas import bandwidth, best_rate, product_bytes, product_us
from foretune.planner.timing.speed import NotKnown, ProductFormat

_SAME_RATIO = 0.1
"""Cards of one chip whose matrix units run at the same multiple of the plain fp32 rate, give or take a tenth, differ
only in clocks, units and memory. GeForce cards differ in more: their matrix units run at half rate.
"""


class GridTimes:
    """Linear in the logarithms of m, n, k and of the time. Smaller sizes than measured take as long as the smallest,
    since hardware pads them; larger ones take longer in proportion.
    """

    def __init__(self, grid: ProductGrid) -> None:
        self._grid = grid
        self._logs = tuple(tuple(math.log(size) for size in axis) for axis in (grid.m, grid.n, grid.k))
        self._num_m, self._num_k = len(grid.m), len(grid.k)

    def us(self, m: float, n: float, k: float) -> float:
        """The time of [m, k] x [k, n]."""
        m_at, m_share, m_over = _place(self._logs[0], m)
        n_at, n_share, n_over = _place(self._logs[1], n)
        k_at, k_share, k_over = _place(self._logs[2], k)
        values, num_m, num_k = self._grid.log_us, self._num_m, self._num_k
        total = 0.0
        for row, row_share in ((n_at, 1 - n_share), (n_at + 1, n_share)):
            for column, column_share in ((k_at, 1 - k_share), (k_at + 1, k_share)):
                at = (row * num_k + column) * num_m + m_at
                total += row_share * column_share * (values[at] * (1 - m_share) + values[at + 1] * m_share)
        return math.exp(total / LOG_STEPS) * m_over * n_over * k_over


def _place(logs: Sequence[float], size: float) -> tuple[int, float, float]:
    """The lower neighbour's index, the share of the upper one, and how far the size exceeds the axis."""
    log = math.log(max(size, 1e-9))
    if log <= logs[0]:
        return 0, 0.0, 1.0
    if log >= logs[-1]:
        return len(logs) - 2, 1.0, math.exp(log - logs[-1])
    at = bisect_right(logs, log) - 1
    return at, (log - logs[at]) / (logs[at + 1] - logs[at]), 1.0


def same_rates(device: Device, other: Device) -> bool:
    """Whether two rows describe one chip with the same units, clocks and memory bandwidth."""
    return _figures(device) == _figures(other)


def _figures(device: Device) -> tuple[object, ...]:
    return device.arch, device.fp32_tflops, device.bf16_dense_tflops, device.bandwidth_gb_per_s


def kin_of(device: Device) -> Device | None:
    """The device with a table whose chip this card has, the one with the nearest bandwidth; itself if it has one."""
    if device.name in tables():
        return device
    near = [other for name in tables() if _is_kin(device, other := devices()[name])]
    return min(near, key=lambda other: abs(math.log(bandwidth(other) / bandwidth(device))), default=None)


def _is_kin(device: Device, other: Device) -> bool:
    if device.arch != other.arch or device.bandwidth_gb_per_s is None:
        return False
    rates = (device.bf16_dense_tflops, device.fp32_tflops, other.bf16_dense_tflops, other.fp32_tflops)
    if any(rate is None for rate in rates):
        return False
    matrix, plain, other_matrix, other_plain = (rate or 1 for rate in rates)
    return abs(math.log(matrix / plain * other_plain / other_matrix)) < _SAME_RATIO


class ProductTimes:
    """Times of matrix products on a device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        kin = kin_of(device)
        table = kernel_table(kin.name) if kin is not None else None
        self._kin, self._grids = kin, _grids(table)

    @cached_property
    def _of_chip(self) -> tuple[Device, dict[str, GridTimes]] | None:
        return None if self._kin is None else _table_of_chip(self._device, self._kin)

    def seconds(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        """`batch` products in one kernel take as long as one with all their rows: as many tiles are computed. Their
        right-hand operands differ, so they take at least as long as it takes to read these.
        """
        wanted: ProductFormat = "bf16" if number_format == "fp16" and "bf16" in self._grids else number_format
        time_us = self._one_us(batch * m, n, k, wanted)
        if batch > 1:
            moved = batch * product_bytes(m, n, k, wanted)
            time_us = max(time_us, 1e6 * moved / bandwidth(self._device))
        return time_us * 1e-6

    def _one_us(self, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        if number_format in self._grids:
            measured_us = self._grids[number_format].us(m, n, k)
            return measured_us if self._kin is self._device else measured_us * self._to_kin(m, n, k, number_format)
        by_formula_us = _formula_us(self._device, m, n, k, number_format)
        if number_format == "int8" and self._of_chip is not None and number_format in self._of_chip[1]:
            other, grids = self._of_chip
            return grids[number_format].us(m, n, k) * by_formula_us / _formula_us(other, m, n, k, number_format)
        if number_format in ("fp32", "tf32") and "bf16" in self._grids:
            # The same shape keeps the same share of the formula's time.
            return self._one_us(m, n, k, "bf16") * by_formula_us / _formula_us(self._device, m, n, k, "bf16")
        return by_formula_us

    def _to_kin(self, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        assert self._kin is not None
        if same_rates(self._device, self._kin):
            return 1.0
        return _formula_us(self._device, m, n, k, number_format) / _formula_us(self._kin, m, n, k, number_format)


def _table_of_chip(device: Device, kin: Device) -> tuple[Device, dict[str, GridTimes]] | None:
    """Another card with the same chip whose table has formats that the nearest one has not.

    The H200 has times of int8 products, the H100 has none; they differ in memory alone.
    """
    own = kernel_table(kin.name)
    for name in tables():
        table = kernel_table(name) if name != kin.name and _is_kin(device, devices()[name]) else None
        if own is not None and table is not None and table.products.keys() - own.products.keys():
            return devices()[name], _grids(table)
    return None


def _grids(table: KernelTable | None) -> dict[str, GridTimes]:
    return {} if table is None else {name: GridTimes(grid) for name, grid in table.products.items()}


def _formula_us(device: Device, m: float, n: float, k: float, number_format: ProductFormat) -> float:
    if device.kind == "cpu":
        raise NotKnown(f"the speed of matrix products on {device.title}: the formula describes GPUs")
    fits = estimates().products
    return product_us(
        fits.get(number_format, fits["bf16"]),
        (m, n, k),
        number_format,
        flops_per_s=best_rate(device, number_format),
        bytes_per_s=bandwidth(device),
    )
