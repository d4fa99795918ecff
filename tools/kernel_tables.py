"""Packs published kernel times into the catalogue: `python -m tools.kernel_tables FOLDER`.

The folder holds the tables as CSV files: gemm_DEVICE.csv.gz, attention_noncausal_forward.csv.gz,
attention_causal_forward.csv.gz and nccl.csv.
"""

import csv
import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foretune.catalog.devices import Device, devices
from foretune.catalog.kernel_tables import KERNELS_DIR, LOG_STEPS, AttentionFit, pack
from tools.kernel_fits import (
    Attention,
    Errors,
    Point,
    fit_attention,
    fit_causal_attention,
    fit_products,
    held_out_fits,
    pooled_attention,
    product_pairs,
    training_shapes,
)

SOURCE = (
    "github:ai-dynamo/aiconfigurator@095f58a51c4ca8e61b66ec108d86f223f8d559ce:"
    "aic-core/src/aiconfigurator_core/systems, Apache-2.0"
)
DEVICE_NAMES = {
    "a100_sxm": "a100-80gb-sxm",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""Names in the tables, and in devices.csv. B300 is not in the latter."""
ARCHITECTURES = (
    ("a100-80gb-sxm",),
    ("h100-sxm", "h200-sxm"),
    ("l40s",),
    ("b200", "gb200", "gb300"),
    ("rtx-pro-6000",),
)
"""Devices that are left out together."""
FORMATS = {"bf16": "bf16", "fp8_dynamic": "fp8", "int8_smoothquant": "int8"}
ONE_ROW_MORE = frozenset({1025, 2049, 4097})
"""These show what one row more than a full tile costs; a grid with them would be wrong between its points."""

Grids = dict[str, dict[tuple[int, int, int], float]]


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV file, packed or not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def read_grids(path: Path) -> Grids:
    """Microseconds by number format and shape."""
    grids: Grids = defaultdict(dict)
    for row in rows_of(path):
        if int(row["m"]) not in ONE_ROW_MORE:
            shape = (int(row["m"]), int(row["n"]), int(row["k"]))
            grids[FORMATS[row["dtype"]]][shape] = float(row["time_us"])
    return dict(sorted(grids.items()))


def log_steps(time_us: float) -> int:
    """The time as it is stored."""
    return round(math.log(time_us) * LOG_STEPS)


def grid_numbers(grid: Mapping[tuple[int, int, int], float]) -> tuple[dict[str, list[int]], list[int]]:
    """Axes and stored times. The largest n and k together were not measured: time grows with n there."""
    m_axis, n_axis, k_axis = (sorted({shape[axis] for shape in grid}) for axis in range(3))
    numbers = []
    for n in n_axis:
        for k in k_axis:
            for m in m_axis:
                measured = max(size for size in n_axis if size <= n and (m, size, k) in grid)
                numbers.append(log_steps(grid[m, measured, k] * n / measured))
    return {"m": m_axis, "n": n_axis, "k": k_axis}, numbers


def read_collectives(path: Path) -> dict[str, dict[tuple[str, int], dict[int, float]]]:
    """Microseconds by device, kind, number of devices and bytes."""
    found: dict[str, dict[tuple[str, int], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of(path):
        key = (row["operation"], int(row["num_gpus"]))
        found[row["device"]][key][int(row["num_bytes"])] = float(row["time_us"])
    return found


def read_attention(path: Path) -> dict[str, tuple[str, dict[int, list[Attention]]]]:
    """Kernel, and rows by head size, of each device."""
    found: dict[str, tuple[str, dict[int, list[Attention]]]] = {}
    for row in rows_of(path):
        _, rows = found.setdefault(row["device"], (row["kernel"], {}))
        heads, tokens, size = int(row["batch"]) * int(row["num_heads"]), int(row["num_tokens"]), int(row["head_dim"])
        rows.setdefault(size, []).append((heads, tokens, size, float(row["time_us"])))
    return found


def attention_fits(folder: Path) -> dict[str, AttentionFit]:
    """By name in devices.csv."""
    no_mask = read_attention(folder / "attention_noncausal_forward.csv.gz")
    causal = read_attention(folder / "attention_causal_forward.csv.gz")
    fits = {
        name: fit_attention(devices()[name], *no_mask[raw], causal[raw][1])
        for raw, name in DEVICE_NAMES.items()
        if raw in no_mask
    }
    like = [fit for fit in fits.values() if fit.kernel == "fa2"]
    for raw, name in DEVICE_NAMES.items():
        if name not in fits:
            fits[name] = fit_causal_attention(devices()[name], "fa2", causal[raw][1], like)
    return fits


def packed_table(
    name: str, grids: Grids, attention: AttentionFit, collectives: Mapping[tuple[str, int], Mapping[int, float]]
) -> bytes:
    """The device's file."""
    axes: dict[str, Any] = {}
    numbers: list[int] = []
    for number_format, grid in grids.items():
        axes[number_format], times = grid_numbers(grid)
        numbers += times
    keys = sorted(collectives)
    sizes = sorted(collectives[keys[0]])
    numbers += [log_steps(collectives[key][size]) for key in keys for size in sizes]
    header = {
        "device": name,
        "source": SOURCE,
        "products": axes,
        "attention": asdict(attention),
        "message_bytes": sizes,
        "collectives": keys,
    }
    return pack(header, numbers)


def peak_only_errors(rows: Mapping[Device, Sequence[Point]], held_out: Sequence[Sequence[str]]) -> Errors:
    """What one share of the data sheet's bf16 peak gives, if it is taken from the other devices: the yardstick."""
    shares: dict[str, list[tuple[float, float]]] = {
        device.name: [
            (2 * m * n * k / (device.bf16_dense_tflops or 0) / 1e6, measured)
            for m, n, k, measured in training_shapes(points)
        ]
        for device, points in rows.items()
    }
    pairs: list[tuple[float, float]] = []
    for group in held_out:
        others = sorted(t / p for name, values in shares.items() if name not in group for p, t in values)
        factor = others[len(others) // 2]
        pairs += [(p * factor, t) for name in group for p, t in shares.get(name, ())]
    return Errors.of(pairs)


def estimates(tables: Mapping[str, Grids], attention: Mapping[str, AttentionFit]) -> dict[str, Any]:
    """What is stored for devices without a table; prints its errors."""
    products, held_out = {}, {}
    for number_format in ("bf16", "fp8", "int8"):
        rows: dict[Device, list[Point]] = {
            devices()[name]: [(*shape, time_us) for shape, time_us in grids[number_format].items()]
            for name, grids in tables.items()
            if number_format in grids
        }
        fits = held_out_fits(number_format, rows, ARCHITECTURES)
        fit = fit_products(number_format, rows)
        products[number_format], held_out[number_format] = asdict(fit), [asdict(one) for one in fits]
        pairs = [
            pair
            for one in fits
            for device, points in rows.items()
            if device.name in one.without
            for pair in product_pairs(one.fit, device, number_format, training_shapes(points))
        ]
        _say(f"{number_format}: architectures left out in turn: {_percent(Errors.of(pairs))}; {fit}")
        for one in fits:
            _say(f"  without {', '.join(one.without)}: {_percent(Errors(one.median_error, one.p90_error))}")
        if number_format == "bf16":
            _say(f"  one share of the peak: {_percent(peak_only_errors(rows, ARCHITECTURES))}")
    pooled = pooled_attention({devices()[name]: fit for name, fit in attention.items() if fit.kernel == "fa2"})
    return {"source": SOURCE, "products": products, "held_out": held_out, "attention": asdict(pooled)}


def _percent(errors: Errors) -> str:
    return f"median {errors.median:.1%}, p90 {errors.p90:.1%}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(folder: Path) -> int:
    collectives = read_collectives(folder / "nccl.csv")
    attention = attention_fits(folder)
    tables: dict[str, Grids] = {}
    for raw, name in DEVICE_NAMES.items():
        tables[name] = read_grids(folder / f"gemm_{raw}.csv.gz")
        packed = packed_table(name, tables[name], attention[name], collectives[raw])
        (KERNELS_DIR / f"{name}.xz").write_bytes(packed)
        fit = attention[name]
        _say(f"{name}: {len(packed)} bytes; attention {fit.kernel} fitted to {fit.fitted_to}: "
             f"{_percent(Errors(fit.median_error, fit.p90_error))}; {dict(fit.efficiency)}")  # fmt: skip
    text = json.dumps(estimates(tables, attention), indent=1)
    (KERNELS_DIR / "estimates.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
