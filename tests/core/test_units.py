"""Numbers as people read them."""

import pytest

from foretune.core.units import (
    GIB,
    KIB,
    MIB,
    bytes_of_text,
    bytes_text,
    count_text,
    counted_text,
    duration_text,
    energy_text,
    measured_pair_text,
    measured_text,
    rate_text,
    rounded_share_text,
    seconds_of_text,
    share_text,
    usd_of_text,
    usd_text,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1000, "1000 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (10**6, "976.56 KiB"),
        (MIB - 1, "1.00 MiB"),
        (MIB, "1.00 MiB"),
        (10**9, "953.67 MiB"),
        (GIB - 1, "1.00 GiB"),
        (GIB, "1.00 GiB"),
        (24 * 10**9, "22.35 GiB"),
        (24 * GIB, "24.00 GiB"),
        (2048 * GIB, "2048.00 GiB"),
        (-GIB, "-1.00 GiB"),
    ],
)
def test_bytes(num_bytes: float, text: str) -> None:
    assert bytes_text(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (512, "512"),
        (999, "999"),
        (1000, "1 k"),
        (35_746_307, "35.7 M"),
        (999_499, "999 k"),
        (999_999, "1 M"),
        (999_999_999, "1 B"),
        (11_901_408_320, "11.9 B"),
        (1_234_000_000_000, "1,230 B"),
        (-1500, "-1.5 k"),
    ],
)
def test_counts(count: float, text: str) -> None:
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.0000123, "0.0123 ms"),
        (0.0042, "4.2 ms"),
        (0.0999, "99.9 ms"),
        (0.1, "0.10 s"),
        (0.214, "0.21 s"),
        (9.99, "9.99 s"),
        (10, "10 s"),
        (42.4, "42 s"),
        (59.4, "59 s"),
        (59.5, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86_399, "23 h 59 min"),
        (86_400, "1 d 0 h"),
        (3 * 86_400 + 4 * 3600 + 59 * 60, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [
        (0, "0 samples/s"),
        (1, "1 samples/s"),
        (12.34, "12.3 samples/s"),
        (999.9, "1,000 samples/s"),
        (45_678, "45,700 samples/s"),
        (0.5, "2 s/sample"),
        (0.2439, "4.1 s/sample"),
        (0.0001, "10,000 s/sample"),
    ],
)
def test_rates(per_second: float, text: str) -> None:
    assert rate_text(per_second, "sample") == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.0123, "1.23 %"), (0.5, "50 %"), (1, "100 %"), (0.00012345, "0.0123 %"), (12.5, "1,250 %")],
)
def test_shares(share: float, text: str) -> None:
    assert share_text(share) == text


@pytest.mark.parametrize(("usd", "text"), [(0, "$0.00"), (0.346, "$0.35"), (1234.5, "$1,234.50")])
def test_money(usd: float, text: str) -> None:
    assert usd_text(usd) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "text"),
    [
        (12.3456, 11.9, 12.8, "s", "12.3 s (11.9 to 12.8 s)"),
        (12.3456, 9.0, 15.7, "s", "12 s (9 to 16 s)"),
        (0.0123, 0.0119, 0.0127, "s", "12.3 ms (11.9 to 12.7 ms)"),
        (12345.0, 12000.0, 12700.0, "s", "3.43 h (3.33 to 3.53 h)"),
        (1234.5, 1200.0, 1269.0, "samples/s", "1,230 samples/s (1,200 to 1,270 samples/s)"),
        (5.2, 0.003, 10_000.0, "", "5 (0 to 10,000)"),
        (0.0004, -0.9, 0.9, "", "0.0 (-0.9 to 0.9)"),
        (3 * 2**29, None, None, "bytes", "1.5 GiB"),
        (0.4567, None, None, "", "0.46"),
        (1.25, 1.25, 1.25, "usd", "$1.25 (equal in all)"),
        (None, None, None, "s", "not known"),
    ],
)
def test_digits_follow_the_interval(
    value: float | None, low: float | None, high: float | None, unit: str, text: str
) -> None:
    assert measured_text(value, low, high, unit) == text


@pytest.mark.parametrize(
    ("count", "things", "text"),
    [
        (1, "prompts", "1 prompt"),
        (2, "prompts", "2 prompts"),
        (1, "groups of samples", "1 group of samples"),
        (0, "held-out images", "0 held-out images"),
        (1200, "held-out images", "1,200 held-out images"),
    ],
)
def test_one_of_something_is_no_plural(count: int, things: str, text: str) -> None:
    assert counted_text(count, things) == text


@pytest.mark.parametrize(
    ("before", "after", "interval", "unit", "texts"),
    [
        (0.5, 0.499, (-0.04, 0.038), "", ("0.50", "0.50")),
        (0.5, 0.499, (-0.002, 0.0), "", ("0.5000", "0.4990")),
        (0.1, 0.6, (0.45, 0.55), "", ("0.10", "0.60")),
        (0.5, 0.499, (None, None), "", ("0.500", "0.499")),
        (0.5, 0.5, (None, None), "", ("0.50", "0.50")),
        (0.5, 0.25, (-0.25, -0.25), "", ("0.50", "0.25")),
        (0.09, 0.12, (0.02, 0.04), "s", ("0.090 s", "0.120 s")),
        (0, 3 * GIB, (2.9 * GIB, 3.1 * GIB), "bytes", ("0.00 GiB", "3.00 GiB")),
        (1.5, 1.75, (0.2, 0.3), "usd", ("$1.50", "$1.75")),
        (0, 0, (None, None), "", ("0", "0")),
    ],
)
def test_two_numbers_have_the_same_unit_and_decimals(
    before: float, after: float, interval: tuple[float | None, float | None], unit: str, texts: tuple[str, str]
) -> None:
    assert measured_pair_text(before, after, *interval, unit) == texts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("16GiB", (16 * GIB, True)),
        ("16 GiB", (16 * GIB, True)),
        (" 16gib ", (16 * GIB, True)),
        ("16Gi", (16 * GIB, True)),
        ("16GB", (16 * 10**9, False)),
        ("16 gb", (16 * 10**9, False)),
        ("16g", (16 * 10**9, False)),
        ("16G", (16 * 10**9, False)),
        ("1.5TiB", (1536 * GIB, True)),
        ("512MiB", (512 * MIB, True)),
        ("0GB", (0, False)),
        ("16", None),
        ("16 B", None),
        ("16KiB", None),
        ("-16GiB", None),
        (".5GiB", None),
        ("16GiBs", None),
        ("16GiB 24GiB", None),
        ("4070M", None),
        ("h100", None),
        ("l4", None),
        ("", None),
    ],
)
def test_sizes_as_people_type_them(text: str, found: tuple[int, bool] | None) -> None:
    assert bytes_of_text(text) == found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6h", 21600), ("90 min", 5400), ("1.5d", 129600), ("45S", 45), ("6", None), ("0h", None), ("soon", None)],
)
def test_times_as_people_type_them(text: str, seconds: float | None) -> None:
    assert seconds_of_text(text) == seconds


@pytest.mark.parametrize(
    ("text", "usd"), [("20", 20), ("20usd", 20), ("$ 2.5", 2.5), ("20 USD", 20), ("-3", None), ("20 EUR", None)]
)
def test_money_as_people_type_it(text: str, usd: float | None) -> None:
    assert usd_of_text(text) == usd


@pytest.mark.parametrize(
    ("watt_hours", "text"), [(12.34, "12 Wh"), (499, "499 Wh"), (812, "0.8 kWh"), (2000, "2.0 kWh"), (14_321, "14 kWh")]
)
def test_energy(watt_hours: float, text: str) -> None:
    assert energy_text(watt_hours) == text


def test_rough_shares() -> None:
    assert rounded_share_text(0.784) == "78 %"
