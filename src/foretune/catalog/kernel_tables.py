"""Published times of kernels, one small file for each device; each is read when its device is first needed."""

import json
import lzma
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from foretune.catalog.devices import Text, devices
from foretune.catalog.rows import DATA_DIR, Row, doubles, raise_all, read_csv, validated

KERNELS_DIR = DATA_DIR / "kernels"
LOG_STEPS = 200
"""Times are stored as natural logarithms of microseconds in steps of 1/200: rounding costs a quarter of a percent."""

GridFormat = Literal["bf16", "fp8", "int8"]
CollectiveKind = Literal["all_gather", "all_reduce", "reduce_scatter"]


@dataclass(frozen=True)
class ProductGrid:
    """Times of [m, k] x [k, n] in one number format, for every combination of the three axes."""

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    log_us: Sequence[int]
    """Logarithms in steps of 1/`LOG_STEPS`, at [(n_index * len(k) + k_index) * len(m) + m_index]."""


@dataclass(frozen=True)
class AttentionFit:
    """Fused attention without a mask, forward. Blocks of 128 queries fill the device's slots in waves; each block walks
    along the keys.
    """

    kernel: str
    """fa2, fa3, fa4: FlashAttention 2, 3 and 4."""
    fitted_to: str
    latency_us: float
    extra_keys: float
    """What begins and ends a block takes as long as this many keys."""
    slots: float
    """Blocks that run at once, each with its share of the device's rate."""
    blend: float
    """0: a partly filled last wave takes its share of the time; 1: all of it."""
    efficiency: Mapping[int, float]
    """Share of the data sheet's dense 16-bit rate, by head size. Kernels pad head sizes to the next of these."""
    median_error: float
    p90_error: float


@dataclass(frozen=True)
class ProductFit:
    """A matrix product by a formula, where there is no table: rate and memory traffic together, plus a start."""

    latency_us: float
    us_per_1000_k: float
    efficiency: float
    """Share of the best rate that was measured on the device."""
    bandwidth_share: float


@dataclass(frozen=True)
class HeldOutFit:
    """The formula fitted without some devices, and its errors on these."""

    without: tuple[str, ...]
    fit: ProductFit
    median_error: float
    p90_error: float


@dataclass(frozen=True)
class KernelTable:
    """What was measured on one device."""

    device: str
    """As in devices.csv."""
    source: str
    products: Mapping[str, ProductGrid]
    """By number format: bf16, fp8, int8. fp8 includes the quantisation of the activation."""
    attention: AttentionFit
    message_bytes: tuple[int, ...]
    collectives: Mapping[tuple[str, int], Sequence[int]]
    """Times by kind and number of devices, one for each of `message_bytes`, as logarithms like those of a grid."""


@dataclass(frozen=True)
class Estimates:
    """What devices with tables teach about those without."""

    products: Mapping[str, ProductFit]
    held_out: Mapping[str, tuple[HeldOutFit, ...]]
    attention: AttentionFit
    """FlashAttention 2; its efficiency is the share of the best rate that was measured, not of the data sheet's."""


class BestRate(Row):
    """The best rate of a 16-bit matrix product that someone measured on a device, over many large shapes."""

    device: Text
    tflops: Annotated[float, Field(gt=0, le=20_000)]
    source: Text


def pack(header: Mapping[str, Any], numbers: Sequence[int]) -> bytes:
    """A line of JSON and the differences of the numbers as 16-bit integers, compressed."""
    differences = array("h", (after - before for before, after in pairwise((0, *numbers))))
    if sys.byteorder == "big":
        differences.byteswap()
    body = json.dumps(header, separators=(",", ":")).encode() + b"\n" + differences.tobytes()
    return lzma.compress(body, format=lzma.FORMAT_XZ, preset=9 | lzma.PRESET_EXTREME)


def unpack(packed: bytes) -> tuple[dict[str, Any], "array[int]"]:
    """What was packed."""
    line, _, rest = lzma.decompress(packed).partition(b"\n")
    differences = array("h")
    differences.frombytes(rest)
    if sys.byteorder == "big":
        differences.byteswap()
    return json.loads(line), array("h", accumulate(differences))


def attention_fit(raw: Mapping[str, Any]) -> AttentionFit:
    """From JSON, where head sizes are text."""
    efficiency = {int(size): float(share) for size, share in raw["efficiency"].items()}
    return AttentionFit(**{**raw, "efficiency": dict(sorted(efficiency.items()))})


def read_kernel_table(path: Path) -> KernelTable:
    """One device's file."""
    header, numbers = unpack(path.read_bytes())
    start = 0

    def taken(count: int) -> "array[int]":
        nonlocal start
        start += count
        return numbers[start - count : start]

    products = {}
    for name, axes in header["products"].items():
        m, n, k = (tuple(axes[axis]) for axis in "mnk")
        products[name] = ProductGrid(m=m, n=n, k=k, log_us=taken(len(m) * len(n) * len(k)))
    sizes = tuple(header["message_bytes"])
    collectives = {(kind, count): taken(len(sizes)) for kind, count in header["collectives"]}
    assert start == len(numbers), f"{path.name} has {len(numbers)} numbers, its axes {start}"
    return KernelTable(
        device=header["device"],
        source=header["source"],
        products=MappingProxyType(products),
        attention=attention_fit(header["attention"]),
        message_bytes=sizes,
        collectives=MappingProxyType(collectives),
    )


def kernel_table_names() -> tuple[str, ...]:
    """Devices that have a table, as in devices.csv."""
    return tuple(sorted(path.stem for path in KERNELS_DIR.glob("*.xz")))


@cache
def kernel_table(device_name: str) -> KernelTable | None:
    """The kernel times of a device, named as in devices.csv; None if nobody published them."""
    if device_name not in kernel_table_names():
        return None
    return read_kernel_table(KERNELS_DIR / f"{device_name}.xz")


@cache
def estimates() -> Estimates:
    """What the tables teach about devices without one."""
    raw = json.loads((KERNELS_DIR / "estimates.json").read_text(encoding="utf-8"))
    return Estimates(
        products={name: ProductFit(**fit) for name, fit in raw["products"].items()},
        held_out={
            name: tuple(
                HeldOutFit(**{**one, "without": tuple(one["without"]), "fit": ProductFit(**one["fit"])}) for one in fits
            )
            for name, fits in raw["held_out"].items()
        },
        attention=attention_fit(raw["attention"]),
    )


def read_best_rates(path: Path) -> Mapping[str, BestRate]:
    """Every row of a file by device; raises `CatalogError` with all that is wrong with the file."""
    raw_rows, malformed = read_csv(path)
    rows, problems = validated(BestRate, raw_rows, label="device")
    unknown = [f"{row.device}: no such device" for row in rows if row.device not in devices()]
    raise_all(path, [*malformed, *problems, *unknown, *doubles(rows, lambda row: row.device)])
    return MappingProxyType({row.device: row for row in rows})


@cache
def best_rates() -> Mapping[str, BestRate]:
    """The best measured rate of each device that has one."""
    return read_best_rates(KERNELS_DIR / "best_rates.csv")
