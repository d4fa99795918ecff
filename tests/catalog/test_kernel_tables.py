"""Shipped kernel times: as published, small, quick to load, of devices that the catalogue has."""

import math
import time
from pathlib import Path

import pytest

from foretune.catalog.devices import devices
from foretune.catalog.kernel_tables import (
    KERNELS_DIR,
    LOG_STEPS,
    best_rates,
    estimates,
    kernel_table,
    kernel_table_names,
    pack,
    read_best_rates,
    read_kernel_table,
    unpack,
)
from foretune.catalog.rows import CatalogError

NAMES = kernel_table_names()
HALF_A_STEP = 0.5 / LOG_STEPS + 1e-9

PRODUCTS = (
    ("h100-sxm", "bf16", (1, 32, 32), 3.237),
    ("h100-sxm", "bf16", (4096, 3072, 3072), 103.8),
    ("h100-sxm", "fp8", (4096, 8192, 3072), 178.7),
    ("l40s", "int8", (1024, 4096, 4096), 63.49),
    ("a100-80gb-sxm", "bf16", (2304, 5120, 16384), 1675.0),
    ("rtx-pro-6000", "bf16", (32768, 65536, 51200), 566100.0),
    ("gb300", "bf16", (256, 1536, 65536), 47.44),
)
COLLECTIVES = (
    ("h100-sxm", ("all_reduce", 8), 2**20, 25.4),
    ("h100-sxm", ("all_reduce", 8), 2**29, 2111.0),
    ("l40s", ("all_reduce", 8), 2**29, 649500.0),
)


def test_these_devices_have_tables() -> None:
    assert NAMES == ("a100-80gb-sxm", "b200", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000")
    assert set(NAMES) <= set(devices())


@pytest.mark.parametrize(("name", "number_format", "shape", "time_us"), PRODUCTS)
def test_products_are_as_published(name: str, number_format: str, shape: tuple[int, int, int], time_us: float) -> None:
    table = kernel_table(name)
    assert table is not None
    grid = table.products[number_format]
    m, n, k = (axis.index(size) for axis, size in zip((grid.m, grid.n, grid.k), shape, strict=True))
    stored = grid.log_us[(n * len(grid.k) + k) * len(grid.m) + m] / LOG_STEPS
    assert abs(stored - math.log(time_us)) <= HALF_A_STEP


@pytest.mark.parametrize(("name", "key", "num_bytes", "time_us"), COLLECTIVES)
def test_collectives_are_as_published(name: str, key: tuple[str, int], num_bytes: int, time_us: float) -> None:
    table = kernel_table(name)
    assert table is not None
    stored = table.collectives[key][table.message_bytes.index(num_bytes)] / LOG_STEPS
    assert abs(stored - math.log(time_us)) <= HALF_A_STEP


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_whole(name: str) -> None:
    table = kernel_table(name)
    assert table is not None
    assert table.device == name
    assert "095f58a51c4ca8e61b66ec108d86f223f8d559ce" in table.source
    assert "Apache-2.0" in table.source
    for grid in table.products.values():
        assert len(grid.log_us) == len(grid.m) * len(grid.n) * len(grid.k)
        assert not {1025, 2049, 4097} & set(grid.m)
    assert set(table.products) >= {"bf16"} | ({"fp8"} if devices()[name].fp8_dense_tflops else set())
    assert {kind for kind, _ in table.collectives} == {"all_gather", "all_reduce", "reduce_scatter"}
    assert table.attention.kernel == {"Hopper": "fa3", "Blackwell": "fa4"}.get(
        "Ada" if name in ("rtx-pro-6000", "l40s") else devices()[name].arch.split()[0], "fa2"
    )


def test_no_product_exceeds_the_data_sheet() -> None:
    """Times in another unit, or of another device, would."""
    for name in NAMES:
        table = kernel_table(name)
        assert table is not None
        grid = table.products["bf16"]
        peak = devices()[name].bf16_dense_tflops
        assert peak is not None
        best = max(
            2
            * grid.m[-1]
            * n
            * k
            / math.exp(grid.log_us[(i * len(grid.k) + j + 1) * len(grid.m) - 1] / LOG_STEPS)
            / 1e6
            for i, n in enumerate(grid.n)
            for j, k in enumerate(grid.k)
        )
        assert 0.5 * peak < best < peak, name


def test_numbers_survive_packing() -> None:
    header, numbers = {"device": "x", "axes": [1, 2]}, [3, -2000, 3000, 3000, 0]
    found, unpacked = unpack(pack(header, numbers))
    assert found == header
    assert list(unpacked) == numbers


def test_a_file_with_too_few_numbers_is_refused(tmp_path: Path) -> None:
    header, numbers = unpack((KERNELS_DIR / "a100-80gb-sxm.xz").read_bytes())
    path = tmp_path / "a100-80gb-sxm.xz"
    path.write_bytes(pack(header, numbers))
    assert read_kernel_table(path) == kernel_table("a100-80gb-sxm")
    path.write_bytes(pack(header, [*numbers, 1]))
    with pytest.raises(AssertionError, match="numbers"):
        read_kernel_table(path)


def test_a_device_without_a_table_has_none() -> None:
    assert kernel_table("rtx-4090") is None
    assert kernel_table("../devices") is None


def test_files_are_small_and_a_device_loads_in_under_40_ms_of_processor_time() -> None:
    assert sum(path.stat().st_size for path in KERNELS_DIR.iterdir()) < 300_000
    used_s = []
    for _ in range(5):
        start_s = time.thread_time()
        read_kernel_table(KERNELS_DIR / "h200-sxm.xz")
        used_s.append(time.thread_time() - start_s)
    assert min(used_s) < 0.04


def test_best_rates_are_near_the_data_sheet() -> None:
    for row in best_rates().values():
        device = devices()[row.device]
        peak = device.bf16_dense_tflops or device.fp16_dense_tflops
        assert peak is not None
        assert 0.5 < row.tflops / peak < 1.25, row.device


def test_all_that_is_wrong_with_best_rates_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "best_rates.csv"
    path.write_text("device,tflops,source\nrtx-4090,0,a\nrtx-9999,1,a\nl4,1,a\nl4,2,a\n", encoding="utf-8")
    with pytest.raises(CatalogError) as caught:
        read_best_rates(path)
    assert len(caught.value.problems) == 3


def test_estimates_are_of_every_format_and_were_checked_on_devices_left_out() -> None:
    found = estimates()
    assert set(found.products) == set(found.held_out) == {"bf16", "fp8", "int8"}
    assert {name for one in found.held_out["bf16"] for name in one.without} == set(NAMES)
    assert found.attention.kernel == "fa2"
