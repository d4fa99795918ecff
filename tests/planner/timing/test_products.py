"""Times of matrix products: between measured shapes, beyond them, and without a table."""

import math
from itertools import pairwise
from statistics import median, quantiles

import pytest

from foretune.catalog.devices import Device, devices, generic_card
from foretune.catalog.kernel_tables import (
    LOG_STEPS,
    ProductFit,
    ProductGrid,
    estimates,
    kernel_table,
    kernel_table_names,
)
from foretune.planner.timing.formulas import bandwidth, best_rate, product_us
from foretune.planner.timing.products import GridTimes, ProductTimes, kin_of
from foretune.planner.timing.speed import NotKnown, ProductFormat

US = 1e-6


def grid_of(name: str, number_format: str = "bf16") -> ProductGrid:
    table = kernel_table(name)
    assert table is not None
    return table.products[number_format]


def shapes(grid: ProductGrid, least_m: int = 64, least_side: int = 256) -> list[tuple[int, int, int, float]]:
    """Shapes like those of training, and measured microseconds."""
    return [
        (m, n, k, math.exp(grid.log_us[(i * len(grid.k) + j) * len(grid.m) + at] / LOG_STEPS))
        for i, n in enumerate(grid.n)
        for j, k in enumerate(grid.k)
        for at, m in enumerate(grid.m)
        if m >= least_m and min(n, k) >= least_side
    ]


def log_errors(pairs: list[tuple[float, float]]) -> list[float]:
    return [abs(math.log(predicted / measured)) for predicted, measured in pairs]


def without_m(grid: ProductGrid, left_out: int) -> ProductGrid:
    at = grid.m.index(left_out)
    kept = [value for index, value in enumerate(grid.log_us) if index % len(grid.m) != at]
    return ProductGrid(m=tuple(m for m in grid.m if m != left_out), n=grid.n, k=grid.k, log_us=kept)


def seconds(name: str, m: float, n: float, k: float, number_format: ProductFormat = "bf16", batch: float = 1) -> float:
    return ProductTimes(devices()[name]).seconds(batch, m, n, k, number_format)


def test_a_measured_shape_takes_its_measured_time() -> None:
    assert seconds("h100-sxm", 4096, 3072, 3072) == pytest.approx(103.8 * US, rel=0.003)
    assert seconds("h100-sxm", 4096, 3072, 3072, "fp16") == pytest.approx(103.8 * US, rel=0.003)
    assert seconds("l40s", 1024, 4096, 4096, "int8") == pytest.approx(63.49 * US, rel=0.003)


def test_between_shapes_it_is_linear_in_logarithms() -> None:
    grid = ProductGrid(m=(1, 4), n=(2, 8), k=(16, 64), log_us=[0, 200, 0, 200, 400, 600, 400, 600])
    times = GridTimes(grid)
    assert times.us(2, 2, 16) == pytest.approx(math.exp(0.5))
    assert times.us(2, 4, 32) == pytest.approx(math.exp(1.5))


def test_below_the_grid_it_takes_the_smallest_and_above_it_grows_in_proportion() -> None:
    assert seconds("h100-sxm", 4096, 16, 4096) == seconds("h100-sxm", 4096, 32, 4096)
    assert seconds("h100-sxm", 4096, 4096, 4) == seconds("h100-sxm", 4096, 4096, 32)
    assert seconds("h100-sxm", 0.5, 4096, 4096) == seconds("h100-sxm", 1, 4096, 4096)
    assert seconds("h100-sxm", 4 * 32768, 4096, 4096) == pytest.approx(4 * seconds("h100-sxm", 32768, 4096, 4096))
    assert seconds("h100-sxm", 512, 4096, 3 * 65536) == pytest.approx(3 * seconds("h100-sxm", 512, 4096, 65536))


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h100-sxm", "l40s"])
def test_rows_left_out_of_the_grid_are_interpolated(name: str) -> None:
    grid = grid_of(name)
    errors: list[float] = []
    predicted_us = measured_us = 0.0
    for m in (128, 512, 1280, 2560, 8192):
        times = GridTimes(without_m(grid, m))
        pairs = [(times.us(m, n, k), measured) for row, n, k, measured in shapes(grid) if row == m]
        errors += log_errors(pairs)
        predicted_us += sum(predicted for predicted, _ in pairs)
        measured_us += sum(measured for _, measured in pairs)
    assert median(errors) < 0.08
    assert quantiles(errors, n=10)[-1] < 0.30
    assert predicted_us / measured_us == pytest.approx(1, abs=0.07)


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h200-sxm", "rtx-4090", "mi300x", "b200"])
def test_times_grow_with_the_work(name: str) -> None:
    times = [seconds(name, 4**i, 4**i, 4**i) for i in range(3, 9)]
    assert all(before < after for before, after in pairwise(times))
    # Eight decades of operations: from the latency of a kernel to the device's rate.
    assert times[0] < 2e-5
    assert 2 * 65536**3 / times[-1] > 0.5 * best_rate(devices()[name], "bf16")


def _held_out_pairs(number_format: ProductFormat) -> list[tuple[float, float]]:
    pairs = []
    for one in estimates().held_out[number_format]:
        for name in one.without:
            rates = _rates(devices()[name], number_format)
            pairs += [
                (product_us(one.fit, (m, n, k), number_format, flops_per_s=rates[0], bytes_per_s=rates[1]), measured)
                for m, n, k, measured in shapes(grid_of(name, number_format))
            ]
    return pairs


def _rates(device: Device, number_format: ProductFormat) -> tuple[float, float]:
    return best_rate(device, number_format), bandwidth(device)


def _peak_only_errors() -> list[float]:
    """The yardstick: the data sheet's rate times one share, taken from the devices of other architectures."""
    ratios = {
        name: [(m, t / (2 * m * n * k / (devices()[name].bf16_dense_tflops or 1) / 1e6)) for m, n, k, t in rows]
        for name in kernel_table_names()
        if (rows := shapes(grid_of(name)))
    }
    errors = []
    for one in estimates().held_out["bf16"]:
        share = median(ratio for name in ratios if name not in one.without for _, ratio in ratios[name])
        errors += [abs(math.log(share / ratio)) for name in one.without for _, ratio in ratios[name]]
    return errors


def test_the_formula_describes_devices_that_it_was_not_fitted_to() -> None:
    errors, yardstick = log_errors(_held_out_pairs("bf16")), _peak_only_errors()
    assert median(errors) < 0.11
    assert quantiles(errors, n=10)[-1] < 0.28
    assert median(errors) < 0.5 * median(yardstick)
    assert quantiles(errors, n=10)[-1] < 0.3 * quantiles(yardstick, n=10)[-1]


@pytest.mark.parametrize(("number_format", "most"), [("fp8", 0.17), ("int8", 0.28)])
def test_the_formula_is_coarser_in_8_bits(number_format: ProductFormat, most: float) -> None:
    assert median(log_errors(_held_out_pairs(number_format))) < most


def test_stored_errors_are_those_of_the_stored_fits() -> None:
    for one in estimates().held_out["bf16"]:
        pairs = []
        for name in one.without:
            flops_per_s, bytes_per_s = _rates(devices()[name], "bf16")
            pairs += [
                (product_us(one.fit, (m, n, k), "bf16", flops_per_s=flops_per_s, bytes_per_s=bytes_per_s), measured)
                for m, n, k, measured in shapes(grid_of(name))
            ]
        assert median(log_errors(pairs)) == pytest.approx(one.median_error, abs=0.005)


def test_the_card_with_the_same_chip_is_the_better_teacher() -> None:
    """H200 from H100, and back: closer than by the formula alone."""
    flops_per_s, bytes_per_s = _rates(devices()["h200-sxm"], "bf16")
    other = _rates(devices()["h100-sxm"], "bf16")
    fit: ProductFit = estimates().products["bf16"]
    measured = GridTimes(grid_of("h100-sxm"))
    by_kin, by_formula = [], []
    for m, n, k, time_us in shapes(grid_of("h200-sxm")):
        own = product_us(fit, (m, n, k), "bf16", flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
        its = product_us(fit, (m, n, k), "bf16", flops_per_s=other[0], bytes_per_s=other[1])
        by_formula.append((own, time_us))
        by_kin.append((measured.us(m, n, k) * own / its, time_us))
    assert median(log_errors(by_kin)) < 0.06
    assert median(log_errors(by_kin)) < median(log_errors(by_formula))


def test_kin_have_the_same_chip_at_the_same_rate() -> None:
    kin = {name: other.name for name, device in devices().items() if (other := kin_of(device)) is not None}
    assert {name: other for name, other in kin.items() if name != other} == {
        "a100-40gb-sxm": "a100-80gb-sxm",
        "a100-80gb-pcie": "a100-80gb-sxm",
        "h100-pcie": "h100-sxm",
        "h100-sxm-96gb": "h100-sxm",
        "rtx-6000-ada": "l40s",
    }


def test_a_card_with_the_same_figures_takes_the_same_time() -> None:
    assert seconds("h100-sxm-96gb", 4096, 3072, 3072) == seconds("h100-sxm", 4096, 3072, 3072)
    assert seconds("h100-pcie", 4096, 3072, 3072) > 1.2 * seconds("h100-sxm", 4096, 3072, 3072)


def test_batched_products_take_as_long_as_all_their_rows() -> None:
    assert seconds("h100-sxm", 512, 1024, 1024, batch=8) == seconds("h100-sxm", 4096, 1024, 1024)
    # One row each: reading eight thousand matrices takes longer than one product with eight thousand rows.
    least_s = 8192 * 1024 * 1024 * 2 / 3350e9
    assert least_s <= seconds("h100-sxm", 1, 1024, 1024, batch=8192) < 1.1 * least_s


def test_formats_without_a_table_follow_the_data_sheet() -> None:
    bf16 = seconds("h100-sxm", 8192, 8192, 8192)
    assert seconds("h100-sxm", 8192, 8192, 8192, "tf32") / bf16 == pytest.approx(989.4 / 494.7, rel=0.05)
    fp32 = seconds("h100-sxm", 8192, 8192, 8192, "fp32") / bf16
    assert fp32 == pytest.approx(989.4 * 0.803 / (67 * 0.75), rel=0.05)
    # GeForce cards reach the rate of their data sheet, others four fifths.
    assert 2 * 8192**3 / seconds("rtx-4080", 8192, 8192, 8192) == pytest.approx(97.4e12, rel=0.05)
    assert 2 * 8192**3 / seconds("mi300x", 8192, 8192, 8192) == pytest.approx(0.54 * 1307e12, rel=0.05)


@pytest.mark.parametrize(
    ("name", "number_format", "missing"),
    [
        ("t4", "bf16", "bf16_dense_tflops"),
        ("a100-80gb-sxm", "fp8", "fp8_dense_tflops"),
        ("gb300", "int8", "int8_dense_tops"),
        ("laptop-cpu-8core", "fp32", "GPUs"),
    ],
)
def test_what_is_missing_is_named(name: str, number_format: ProductFormat, missing: str) -> None:
    with pytest.raises(NotKnown, match=missing):
        seconds(name, 64, 64, 64, number_format)


def test_a_card_with_only_memory_has_no_speed() -> None:
    card = generic_card("16GiB", memory_gb=16, reported_memory_mib=None)
    with pytest.raises(NotKnown, match="bf16_dense_tflops"):
        ProductTimes(card).seconds(1, 64, 64, 64, "bf16")


def test_two_logical_devices_share_the_figures_of_the_row() -> None:
    assert best_rate(devices()["mi250x"], "bf16") == pytest.approx(147e12)
    assert bandwidth(devices()["mi250x"]) == pytest.approx(3277e9 / 2)


def test_int8_of_the_h100_is_that_of_the_h200_which_has_the_same_chip() -> None:
    """The formula alone takes less than three quarters of the measured time there."""
    size = 4096
    h100, h200 = (ProductTimes(devices()[name]) for name in ("h100-sxm", "h200-sxm"))
    found_s = h100.seconds(1, size, size, size, "int8")
    assert found_s == pytest.approx(h200.seconds(1, size, size, size, "int8"), rel=0.05)
    device = devices()["h100-sxm"]
    rates = {"flops_per_s": best_rate(device, "int8"), "bytes_per_s": bandwidth(device)}
    assert found_s > 1.2 * US * product_us(estimates().products["int8"], (size, size, size), "int8", **rates)
