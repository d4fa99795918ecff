"""Fits of kernel times: planted parameters are found, tables are packed as they were read."""

import gzip
import math
from pathlib import Path

import pytest

from foretune.catalog.devices import Device, devices
from foretune.catalog.kernel_tables import LOG_STEPS, ProductFit, estimates, kernel_table, unpack
from foretune.planner.timing.formulas import attention_us, bandwidth, best_rate, product_us
from tools.kernel_fits import Errors, Point, fit_attention, fit_products, minimum, ratio_128_to_64, thinned
from tools.kernel_tables import grid_numbers, packed_table, read_attention, read_collectives, read_grids

SIZES = (64, 256, 1024, 4096, 8192)
PLANTED = ProductFit(latency_us=4.0, us_per_1000_k=0.3, efficiency=0.7, bandwidth_share=0.8)


def planted_rows(device: Device, fit: ProductFit = PLANTED) -> list[Point]:
    rates = {"flops_per_s": best_rate(device, "bf16"), "bytes_per_s": bandwidth(device)}
    return [(m, n, k, product_us(fit, (m, n, k), "bf16", **rates)) for m in SIZES for n in SIZES[1:] for k in SIZES[1:]]


def test_the_minimum_is_found() -> None:
    found = minimum(lambda x: (math.log(x[0]) - 2) ** 2 + abs(math.log(x[1]) + 1), (1.0, 1.0))
    assert math.log(found[0]) == pytest.approx(2, abs=0.01)
    assert math.log(found[1]) == pytest.approx(-1, abs=0.01)


def test_planted_products_are_found() -> None:
    rows = {devices()[name]: planted_rows(devices()[name]) for name in ("l40s", "h100-sxm")}
    fit = fit_products("bf16", rows)
    assert fit.efficiency == pytest.approx(PLANTED.efficiency, rel=0.05)
    assert fit.latency_us == pytest.approx(PLANTED.latency_us, rel=0.15)


def test_planted_attention_is_found() -> None:
    table, device = kernel_table("l40s"), devices()["l40s"]
    assert table is not None
    assert device.bf16_dense_tflops is not None
    flops = device.bf16_dense_tflops * 1e12

    def rows(size: int) -> list[tuple[int, int, int, float]]:
        return [
            (heads, tokens, size, attention_us(table.attention, heads, tokens, tokens, size, flops_per_s=flops))
            for heads in (4, 16, 48)
            for tokens in (256, 1024, 2048, 8192)
        ]

    # Twice the operations in as much time as one and a half times as many.
    causal = {64: rows(64), 128: [(heads, tokens, 128, 1.5 * time) for heads, tokens, _, time in rows(64)]}
    assert ratio_128_to_64(causal) == pytest.approx(4 / 3)
    fit = fit_attention(device, "fa2", {64: rows(64), 80: rows(80)}, causal)
    assert fit.kernel == "fa2"
    assert fit.efficiency[64] == pytest.approx(table.attention.efficiency[64], rel=0.05)
    assert fit.efficiency[128] == pytest.approx(fit.efficiency[64] * 4 / 3, rel=0.001)
    assert fit.median_error < 0.02


def test_stored_fits_left_out_what_they_say() -> None:
    """The stored fit without the L40S is the one that the other tables give."""
    rows: dict[Device, list[Point]] = {}
    for name in ("a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "gb200", "gb300", "rtx-pro-6000"):
        table = kernel_table(name)
        assert table is not None
        grid = table.products["bf16"]
        rows[devices()[name]] = [
            (m, n, k, math.exp(grid.log_us[(i * len(grid.k) + j) * len(grid.m) + at] / LOG_STEPS))
            for at, m in enumerate(grid.m)
            for i, n in enumerate(grid.n)
            for j, k in enumerate(grid.k)
        ]
    fit = fit_products("bf16", rows)
    stored = next(one.fit for one in estimates().held_out["bf16"] if one.without == ("l40s",))
    assert fit.efficiency == pytest.approx(stored.efficiency, rel=0.05)
    assert fit.bandwidth_share == pytest.approx(stored.bandwidth_share, rel=0.15)


def test_errors_are_ratios() -> None:
    errors = Errors.of([(1.0, 1.0), (math.e**0.1, 1.0), (1.0, math.e**0.1)])
    assert errors.median == pytest.approx(0.1)


def test_thinned_rows_are_of_every_size() -> None:
    rows: list[Point] = [(float(m), float(n)) for n in range(100) for m in range(20)]
    assert {m for m, _ in thinned(rows)} == set(range(20))
    assert len(thinned(rows)) <= 500


def test_tables_are_read_and_packed(tmp_path: Path) -> None:
    gemm = tmp_path / "gemm_x.csv.gz"
    lines = ["dtype,m,n,k,time_us"]
    lines += [f"bf16,{m},{n},{k},{m + n + k}" for m in (1, 1024, 1025) for n in (32, 64) for k in (32, 64)]
    # The largest n and k together are missing.
    gemm.write_bytes(gzip.compress("\n".join(line for line in lines if ",64,64," not in line).encode()))
    grids = read_grids(gemm)
    axes, numbers = grid_numbers(grids["bf16"])
    assert axes == {"m": [1, 1024], "n": [32, 64], "k": [32, 64]}
    assert numbers[:2] == [round(200 * math.log(65)), round(200 * math.log(1088))]
    assert numbers[-2:] == [round(200 * math.log(2 * 97)), round(200 * math.log(2 * 1120))]

    nccl = tmp_path / "nccl.csv"
    nccl.write_text("device,operation,num_gpus,num_bytes,time_us\nx,all_gather,2,1024,9\nx,all_gather,2,512,8\n")
    attention = tmp_path / "attention.csv"
    attention.write_text("device,kernel,batch,num_heads,num_tokens,head_dim,time_us\nx,fa2,2,8,256,64,5.5\n")
    assert read_attention(attention) == {"x": ("fa2", {64: [(16, 256, 64, 5.5)]})}
    header, packed = unpack(packed_table("x", grids, estimates().attention, read_collectives(nccl)["x"]))
    assert header["message_bytes"] == [512, 1024]
    assert list(packed) == [*numbers, round(200 * math.log(8)), round(200 * math.log(9))]
