"""Devices: known figures, names that resolve, and a check that sees every planted mistake."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.catalog import CatalogError, device, device_by_driver_name, devices
from foretune.catalog.devices import generic_card, read_devices
from foretune.catalog.number_formats import multiplies
from foretune.catalog.rows import DATA_DIR
from foretune.core.errors import AmbiguousName, UnknownName

Rows = list[dict[str, str]]


def _mutated(tmp_path: Path, mutate: Callable[[Rows], None]) -> Path:
    """A copy of the data file with something changed in it."""
    with (DATA_DIR / "devices.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    mutate(rows)
    path = tmp_path / "devices.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def _change(name: str, /, **cells: str) -> Callable[[Rows], None]:
    def mutate(rows: Rows) -> None:
        next(row for row in rows if row["name"] == name).update(cells)

    return mutate


def _drop_column(rows: Rows) -> None:
    for row in rows:
        del row["tdp_w"]


def _add_column(rows: Rows) -> None:
    for row in rows:
        row["colour"] = "green"


def test_there_are_51_devices_of_every_kind() -> None:
    assert len(devices()) == 51
    assert {row.kind for row in devices().values()} == {"cuda", "rocm", "mps", "cpu"}


def test_names_on_a_command_line_resolve() -> None:
    for name in ("rtx-4090", "l4", "h100-sxm", "a100-80gb-sxm", "mi300x", "m4-max-40", "laptop-cpu-8core"):
        assert device(name).name == name


def test_an_unknown_device_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"no device named 'rtx-4091'.*'rtx-4090'"):
        device("rtx-4091")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("h100", "h100-sxm"),
        ("H100 80GB", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("a100 80gb", "a100-80gb-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("4070", "rtx-4070"),
        ("4070 Ti", "rtx-4070-ti"),
        ("rtx4080super", "rtx-4080-super"),
        ("4060 ti 16gb", "rtx-4060-ti-16gb"),
        ("a6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_people_and_drivers_write_names_in_other_ways(typed: str, name: str) -> None:
    assert device(typed).name == name


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("3080", ("rtx-3080-10gb", "rtx-3080-12gb")),
        ("v100", ("v100-sxm2-32gb", "v100-sxm2-16gb")),
        ("a100", ("a100-40gb-sxm", "a100-80gb-sxm", "a100-80gb-pcie")),
        ("rtx 6000", ("rtx-6000-ada", "rtx-pro-6000")),
    ],
)
def test_cards_of_unlike_memory_are_not_guessed(typed: str, candidates: tuple[str, ...]) -> None:
    with pytest.raises(AmbiguousName) as caught:
        device(typed)
    assert caught.value.candidates == candidates


@pytest.mark.parametrize("typed", ["l40", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3080 Ti", "h1"])
def test_another_card_is_not_taken_for_one_like_it(typed: str) -> None:
    with pytest.raises(UnknownName):
        device(typed)


def test_a_driver_tells_cards_of_one_name_apart_by_their_memory() -> None:
    small = device_by_driver_name("NVIDIA GeForce RTX 3080", 10240 * 2**20, "cuda")
    large = device_by_driver_name("NVIDIA GeForce RTX 3080", 12288 * 2**20, "cuda")
    assert (small and small.name, large and large.name) == ("rtx-3080-10gb", "rtx-3080-12gb")
    card = device("rtx-4090")
    assert device_by_driver_name("NVIDIA GeForce RTX 4090", card.memory_bytes, "cuda") == card
    assert device_by_driver_name("NVIDIA GeForce RTX 4090", card.memory_bytes // 2, "cuda") is None
    assert device_by_driver_name("NVIDIA Imaginary 9999", card.memory_bytes, "cuda") is None
    assert device_by_driver_name("NVIDIA GeForce RTX 4060 Ti", 8188 * 2**20, "cuda") is None, "it has another memory"


def test_every_row_has_what_only_a_generic_card_may_lack() -> None:
    for row in devices().values():
        assert None not in (row.year, row.bandwidth_gb_per_s, row.fp32_tflops, row.tdp_w), row.name


def test_formats_agree_with_the_data_sheets() -> None:
    for row in devices().values():
        if row.kind in ("cuda", "rocm"):
            assert multiplies(row, "bf16") is (row.bf16_dense_tflops is not None), row.name
            assert multiplies(row, "fp8") is (row.fp8_dense_tflops is not None), row.name
    assert multiplies(generic_card("16gib", memory_gb=16, reported_memory_mib=None), "bf16") is None


def test_rates_of_a_geforce_card_follow_from_its_shader_rate() -> None:
    """fp16 with fp32 accumulation is twice the fp32 rate on GeForce cards and four times on all others since Ampere."""
    for row in devices().values():
        if row.name.startswith(("rtx-30", "rtx-40", "rtx-50")):
            assert row.bf16_dense_tflops == pytest.approx(2 * (row.fp32_tflops or 0), rel=0.01), row.name


@pytest.mark.parametrize(
    ("name", "memory_gb", "bf16_dense_tflops", "bandwidth_gb_per_s"),
    [
        ("rtx-3090", 24, 71.2, 936),
        ("rtx-4090", 24, 165.2, 1008),
        ("l4", 24, 121.0, 300),
        ("l40s", 48, 362.05, 864),
        ("a100-80gb-sxm", 80, 312.0, 2039),
        ("h100-sxm", 80, 989.4, 3350),
        ("h100-pcie", 80, 756.0, 2000),
        ("mi300x", 192, 1307.4, 5300),
        ("t4", 16, None, 320),
        ("rtx-3080-10gb", 10, 59.6, 760),
        ("rtx-4080", 16, 97.4, 716.8),
        ("rtx-5080", 16, 112.6, 960),
        ("rtx-a6000", 48, 154.8, 768),
        ("a40", 48, 149.7, 696),
        ("v100-sxm2-16gb", 16, None, 900),
        ("laptop-cpu-8core", 32, None, 89.6),
    ],
)
def test_data_sheet_figures(
    name: str, memory_gb: float, bf16_dense_tflops: float | None, bandwidth_gb_per_s: float
) -> None:
    row = device(name)
    assert (row.memory_gb, row.bf16_dense_tflops) == (memory_gb, bf16_dense_tflops)
    assert row.bandwidth_gb_per_s == bandwidth_gb_per_s


def test_memory_is_the_drivers_figure_where_it_is_known() -> None:
    assert device("l4").memory_bytes == 23034 * 2**20
    assert device("mi300x").memory_bytes == 206_141_652_992
    assert device("gb300").reported_memory_mib is None
    assert device("gb300").memory_bytes == 288 * 10**9


def test_the_same_link_has_the_same_speed_everywhere() -> None:
    speeds: dict[str, set[float | None]] = {}
    for row in devices().values():
        speeds.setdefault(row.interconnect, set()).add(row.interconnect_bidirectional_gb_per_s)
    assert speeds["PCIe 3.0 x16"] == {32}
    assert speeds["PCIe 4.0 x16"] == {64}
    assert speeds["PCIe 5.0 x16"] == {128}
    assert all(len(found) == 1 for link, found in speeds.items() if link.startswith(("PCIe", "none")))


def test_rows_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        device("l4").memory_gb = 48


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        (_change("l4", spec_source=""), r"row 7 \(l4\), spec_source"),
        (_change("l4", price_source=""), r"\(l4\), price_source"),
        (_change("l4", name="t4"), "t4: appears twice"),
        (_change("l4", name="L 4"), r"\(L 4\), name"),
        (_change("l4", bandwidth_gb_per_s="-300"), r"bandwidth_gb_per_s.*greater than 0"),
        (_change("l4", bandwidth_gb_per_s="300000"), "bandwidth_gb_per_s.*less than"),
        (_change("l4", bf16_dense_tflops="nan"), "bf16_dense_tflops"),
        (_change("l4", bf16_dense_tflops="121 TFLOPS"), "bf16_dense_tflops"),
        (_change("l4", kind="gpu"), r"kind.*'cuda'"),
        (_change("l4", spec_grade="D"), "spec_grade"),
        (_change("l4", price_grade=""), "a price and its grade"),
        (_change("l4", price_range_usd_per_hour="0.50-0.60"), "outside its range"),
        (_change("l4", price_range_usd_per_hour="cheap"), "price_range_usd_per_hour"),
        (_change("l4", reported_memory_source=""), "reported memory and its source"),
        (_change("l4", reported_memory_mib="12288"), "not that of a card"),
        (_change("m4-max-40", interconnect_bidirectional_gb_per_s="10"), "not there has no speed"),
        (_change("l4", title=" L4"), "title: blanks"),
        (_drop_column, r"tdp_w: Field required"),
        (_add_column, "colour: Extra inputs"),
    ],
)
def test_a_planted_mistake_is_seen(tmp_path: Path, mutate: Callable[[Rows], None], complaint: str) -> None:
    with pytest.raises(CatalogError, match=complaint) as caught:
        read_devices(_mutated(tmp_path, mutate))
    assert caught.value.file == "devices.csv"


def test_all_mistakes_of_a_file_are_raised_at_once(tmp_path: Path) -> None:
    def mutate(rows: Rows) -> None:
        _change("l4", spec_source="", memory_gb="0")(rows)
        _change("t4", year="1999")(rows)
        _change("h20", name="h100-sxm")(rows)

    with pytest.raises(CatalogError) as caught:
        read_devices(_mutated(tmp_path, mutate))
    assert len(caught.value.problems) == 4


def test_a_row_with_a_cell_too_many_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text((DATA_DIR / "devices.csv").read_text().rstrip("\n") + ",surplus\n")
    with pytest.raises(CatalogError, match="row 51: 32 cells for 31 columns"):
        read_devices(path)
