"""Devices: what the vendor and the driver say about them, and what an hour of one costs."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from foretune.catalog.rows import DATA_DIR, NAME_PATTERN, Row, doubles, raise_all, read_csv, validated
from foretune.core.errors import AmbiguousName, UnknownName
from foretune.core.names import Names

Kind = Literal["cuda", "rocm", "mps", "cpu"]
Grade = Literal["A", "B", "C"]
"""A: a data sheet or two agreeing sources read; B: a secondary source; C: general knowledge, not opened."""

UNKNOWN = "unknown"
"""The architecture of a card of which nothing but its memory is known."""

HERE = "here"
"""The name of this machine's own device, of which the free memory is measured."""

_SAME_MEMORY_SHARE = 0.12
"""Two figures of a card's memory that differ by less are of the same card: ECC and driver take up to a tenth."""

Text = Annotated[str, Field(min_length=1)]
Rate = Annotated[float, Field(gt=0, le=20_000)]


def _names(value: Any) -> Any:
    return tuple(value.split(";")) if isinstance(value, str) else value or ()


def _two_prices(value: Any) -> Any:
    return tuple(value.split("-")) if isinstance(value, str) else value


class Device(Row):
    """One device as a fact sheet. Rates are peaks for dense matrices in 10**12 operations a second.

    None is "not known" or, for a number format, "not supported by the hardware".
    """

    name: Annotated[str, Field(pattern=rf"{NAME_PATTERN}|^[0-9.]+Gi?B$")]
    """What is typed: rtx-4090, h100-sxm, or 16GiB for a card of which only the memory is known."""
    title: Text
    """What is shown: H100 SXM."""
    also_called: Annotated[tuple[Text, ...], BeforeValidator(_names)]
    """What people type for it, where that fits other devices too: h100 means h100-sxm."""
    kind: Kind
    """The torch back end that drives it; ROCm devices answer to torch's name cuda."""
    vendor: Text
    arch: Text
    year: Annotated[int, Field(ge=2010, le=2035)] | None
    memory_gb: Annotated[float, Field(gt=0, le=4096)]
    """As marketed. Vendors write GB where drivers report nearly as many GiB; use `memory_bytes`."""
    memory_type: Text
    reported_memory_mib: Annotated[int, Field(gt=0)] | None
    """Total memory in MiB as the driver reports it, less what error correction takes."""
    reported_memory_source: Text | None
    num_logical_devices: Annotated[int, Field(ge=1, le=16)]
    """How many devices torch sees in one of these; the row's figures are for all of them together."""
    bandwidth_gb_per_s: Rate | None
    """Memory bandwidth in 10**9 bytes a second."""
    fp32_tflops: Rate | None
    """Without matrix units."""
    tf32_dense_tflops: Rate | None
    bf16_dense_tflops: Rate | None
    """Accumulated in fp32."""
    fp16_dense_tflops: Rate | None
    """Accumulated in fp32."""
    fp16_accumulate_dense_tflops: Rate | None
    """fp16 accumulated in fp16."""
    fp8_dense_tflops: Rate | None
    """Accumulated in fp32."""
    fp4_dense_tflops: Rate | None
    int8_dense_tops: Rate | None
    interconnect: Text
    """The link to other devices; "none" if there is none."""
    interconnect_bidirectional_gb_per_s: Rate | None
    """Both directions added, as vendors quote it, in 10**9 bytes a second; one direction has half."""
    tdp_w: Annotated[float, Field(gt=0, le=5000)] | None
    price_usd_per_hour: Annotated[float, Field(gt=0, le=1000)] | None
    """Rent of one device on demand; None for owned hardware or where no price was found."""
    price_range_usd_per_hour: Annotated[tuple[float, float] | None, BeforeValidator(_two_prices)]
    """Lowest and highest price seen."""
    price_source: Text
    """Where the price is from, or why there is none."""
    price_grade: Grade | None
    spec_source: Text
    spec_grade: Grade
    notes: Text | None
    pages_to_host: bool = False
    """Whether its driver moves memory to the host when the device is full, instead of failing. No row says so: that
    depends on the system, so it is known of this machine only."""

    @property
    def row_name(self) -> str:
        """The name of its row in the catalogue, also where a limit or a link was typed behind it."""
        return self.name.partition(":")[0]

    @property
    def memory_bytes(self) -> int:
        """The device's memory: the driver's figure, else the marketed number read as 10**9 bytes.

        The second reading is the smaller of the two possible: it never promises memory that is not there.
        All logical devices together; what a driver and its context keep for themselves is not taken off.
        """
        if self.reported_memory_mib is not None:
            return self.reported_memory_mib * 2**20
        return round(self.memory_gb * 10**9)

    @model_validator(mode="after")
    def _figures_agree(self) -> Self:
        if (self.price_usd_per_hour is None) != (self.price_grade is None):
            raise ValueError("a price and its grade stand together")
        if self.price_range_usd_per_hour is not None:
            low, high = self.price_range_usd_per_hour
            if self.price_usd_per_hour is None or not low <= self.price_usd_per_hour <= high:
                raise ValueError("the price lies outside its range")
        if (self.reported_memory_mib is None) != (self.reported_memory_source is None):
            raise ValueError("reported memory and its source stand together")
        # Error correction and reserved memory take up to a tenth; more would be a slip of the pen.
        if self.reported_memory_mib is not None:
            share = self.reported_memory_mib / 1024 / self.memory_gb
            if not 0.9 <= share <= 1.03:  # noqa: PLR2004
                raise ValueError("reported memory is not that of a card of memory_gb")
        if self.interconnect == "none" and self.interconnect_bidirectional_gb_per_s is not None:
            raise ValueError("an interconnect that is not there has no speed")
        return self


class LinkedDevice(Device):
    """A device whose link to the host was given, whatever its links to other devices are."""

    host_link: Text
    host_gb_per_s: Rate
    """One way, in 10**9 bytes a second."""


class MixedDevices(Device):
    """Cards of different kinds in one machine. What is not of all of them is of the one with the least memory."""

    cards: tuple[Device, ...]
    least: Device
    """The one with the least memory."""

    @property
    def row_name(self) -> str:
        """Of the one with the least memory."""
        return self.least.row_name


def cards_of(device: Device) -> tuple[Device, ...]:
    """The cards of a machine with different ones, or the device itself."""
    return device.cards if isinstance(device, MixedDevices) else (device,)


def read_devices(path: Path) -> Mapping[str, Device]:
    """Every device of a file by name; raises `CatalogError` with all that is wrong with the file."""
    raw_rows, malformed = read_csv(path)
    rows, problems = validated(Device, raw_rows, label="name")
    raise_all(path, [*malformed, *problems, *doubles(rows, lambda row: row.name)])
    return MappingProxyType({row.name: row for row in rows})


@cache
def devices() -> Mapping[str, Device]:
    """Every device of the catalogue by name, in the catalogue's order."""
    return read_devices(DATA_DIR / "devices.csv")


@cache
def device_names() -> Names:
    """Names of devices as people and drivers write them: 4090, RTX 4090, NVIDIA H100 80GB HBM3."""
    rows = devices().values()
    return Names(
        kind="device",
        known={row.name: (row.title, *row.also_called) for row in rows},
        details={row.name: (f"{row.memory_gb:g}gb", row.memory_type) for row in rows},
        conventions={text: row.name for row in rows for text in row.also_called},
        ignored=frozenset({"nvidia", "geforce", "tesla", "amd", "instinct", "oam", "apple", "gpu"}),
    )


def device_by_driver_name(name: str, total_bytes: int, kind: Kind) -> Device | None:
    """The row of a card that a driver reports as `name` with this much memory; None where there is not just one.

    `total_bytes` is of one logical device; drivers and torch report up to a tenth less than the catalogue.
    """
    try:
        candidates: tuple[str, ...] = (device_names().resolve(name).name,)
    except AmbiguousName as error:
        candidates = error.candidates
    except UnknownName:
        return None
    rows = [devices()[candidate] for candidate in candidates]
    fitting = [
        row
        for row in rows
        if row.kind == kind and abs(total_bytes * row.num_logical_devices / row.memory_bytes - 1) < _SAME_MEMORY_SHARE
    ]
    return fitting[0] if len(fitting) == 1 else None


def generic_card(name: str, *, memory_gb: float, reported_memory_mib: int | None, kind: Kind = "cuda") -> Device:
    """A card of which nothing but its memory is known."""
    unknown = "not known: only the memory was given"
    return Device(
        name=name,
        title=name,
        also_called=(),
        kind=kind,
        vendor=UNKNOWN,
        arch=UNKNOWN,
        year=None,
        memory_gb=memory_gb,
        memory_type=UNKNOWN,
        reported_memory_mib=reported_memory_mib,
        reported_memory_source=None if reported_memory_mib is None else "as given",
        num_logical_devices=1,
        bandwidth_gb_per_s=None,
        fp32_tflops=None,
        tf32_dense_tflops=None,
        bf16_dense_tflops=None,
        fp16_dense_tflops=None,
        fp16_accumulate_dense_tflops=None,
        fp8_dense_tflops=None,
        fp4_dense_tflops=None,
        int8_dense_tops=None,
        interconnect=UNKNOWN,
        interconnect_bidirectional_gb_per_s=None,
        tdp_w=None,
        price_usd_per_hour=None,
        price_range_usd_per_hour=None,
        price_source=unknown,
        price_grade=None,
        spec_source=unknown,
        spec_grade="C",
        notes=None,
    )


def device(name: str) -> Device:
    """The device that a name stands for; an unknown one is answered with the nearest."""
    return devices()[device_names().resolve(name).name]
