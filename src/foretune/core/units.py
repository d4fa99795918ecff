"""The one module that turns numbers into text. Names elsewhere carry the unit; here it is printed.

GiB is 2**30 bytes, GB is 10**9: both are printed as what they are.
"""

import math
import re
from collections.abc import Sequence

KIB = 2**10
MIB = 2**20
GIB = 2**30

_SECONDS_PER_MINUTE = 60
_SECONDS_PER_HOUR = 3600
_SECONDS_PER_DAY = 86_400


def bytes_text(num_bytes: float) -> str:
    """Bytes in the largest binary unit that keeps at least one digit before the point: 1.50 GiB, 512 B."""
    for unit_bytes, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        # Where the next smaller unit would show 1024.00, this one shows 1.00.
        if round(abs(num_bytes) / unit_bytes * KIB, 2) >= KIB:
            return f"{num_bytes / unit_bytes:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def memory_text(num_bytes: float) -> str:
    """Memory with the digits a reader can use: 27.4 GiB, 392 MiB."""
    if abs(num_bytes) >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / MIB:.0f} MiB" if abs(num_bytes) >= MIB else bytes_text(num_bytes)


def disk_text(num_bytes: float) -> str:
    """Files and disks in decimal units, as the Hub and disks' makers count: 33.7 GB, 412 MB, 7 kB."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if _rounded(abs(num_bytes) / size) >= 1:
            return f"{_three_digits(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} B"


def bytes_of_text(text: str) -> tuple[int, bool] | None:
    """Bytes of a size as people type it (16GiB, 24 GB, 24g), and whether its unit is binary; None if it is none."""
    # Only after G may the B be left out: 4070M is a card.
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([GMT])(i?)B|(G)(i?))\s*", text, re.IGNORECASE)
    if match is None:
        return None
    number, prefix, binary = (group for group in match.groups() if group is not None)
    power = {"m": 2, "g": 3, "t": 4}[prefix.lower()]
    return round(float(number) * (KIB if binary else 1000) ** power), bool(binary)


def seconds_of_text(text: str) -> float | None:
    """Seconds of a time as people type it (6h, 90 min, 2d, 45s); None if it is none, or has no unit."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", text, re.IGNORECASE)
    if match is None or not float(match[1]):
        return None
    unit_s = {"s": 1, "min": _SECONDS_PER_MINUTE, "h": _SECONDS_PER_HOUR, "d": _SECONDS_PER_DAY}
    return float(match[1]) * unit_s[match[2].lower()]


def usd_of_text(text: str) -> float | None:
    """US dollars as people type them (20, 20usd, $20); None if it is no amount."""
    match = re.fullmatch(r"\s*(?:\$\s*)?(\d+(?:\.\d+)?)\s*(?:usd|\$)?\s*", text, re.IGNORECASE)
    return None if match is None else float(match[1])


def counted_text(count: int, things: str) -> str:
    """So many of something that is named in the plural: 1 held-out image, 2 held-out images, 1 group of samples."""
    thing, of, rest = things.partition(" of ")
    return f"{count:,} {thing.removesuffix('s') if count == 1 else thing}{of}{rest}"


def count_text(count: float) -> str:
    """A count with a decimal suffix and three significant digits: 11.9 B parameters, 35.7 M, 512."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if _rounded(abs(count) / size) >= 1:
            return f"{_three_digits(count / size)} {suffix}"
    return f"{count:.0f}"


def flops_text(flops: float) -> str:
    """Floating-point operations with a decimal prefix: 3 GFLOP, 162 GFLOP, 1.2 TFLOP; a rate is written `.../s`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if _rounded(abs(flops) / size) >= 1:
            return f"{_three_digits(flops / size)} {prefix}FLOP"
    return f"{flops:.0f} FLOP"


def duration_text(seconds: float) -> str:
    """A duration to read at a glance: 4.2 ms, 0.21 s, 42 s, 3 min 20 s, 2 h 05 min, 3 d 4 h."""
    if 0 < seconds < 0.1:  # noqa: PLR2004
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < _SECONDS_PER_MINUTE:
        return f"{whole} s"
    if whole < _SECONDS_PER_HOUR:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < _SECONDS_PER_DAY:
        return f"{whole // _SECONDS_PER_HOUR} h {whole % _SECONDS_PER_HOUR // 60:02d} min"
    return f"{whole // _SECONDS_PER_DAY} d {whole % _SECONDS_PER_DAY // _SECONDS_PER_HOUR} h"


def rate_text(per_second: float, unit: str) -> str:
    """A rate, turned round when it is slow: 12.3 samples/s, but 4.1 s/sample."""
    if per_second >= 1 or per_second <= 0:
        return f"{_three_digits(per_second)} {unit}s/s"
    return f"{_three_digits(1 / per_second)} s/{unit}"


def rates_text(per_second: Sequence[float], unit: str) -> tuple[list[str], str]:
    """Rates to stand side by side, and the one unit of all, which the first decides: (["12.3", "14"], "samples/s")."""
    if per_second[0] >= 1 or min(per_second) <= 0:
        return [_three_digits(rate) for rate in per_second], f"{unit}s/s"
    return [_three_digits(1 / rate) for rate in per_second], f"s/{unit}"


def share_text(share: float) -> str:
    """A share of one as a percentage with three significant digits: 0.0123 -> 1.23 %."""
    return f"{_three_digits(share * 100)} %"


def rounded_share_text(share: float) -> str:
    """A share of one in whole percent, for a rough figure: 0.784 -> 78 %."""
    return f"{share * 100:.0f} %"


def energy_text(watt_hours: float) -> str:
    """Energy with a digit behind the point where it is small: 0.8 kWh, 14 kWh, 420 Wh."""
    size, unit = (1000, "kWh") if watt_hours >= 500 else (1, "Wh")  # noqa: PLR2004
    places = 1 if watt_hours / size < 10 else 0  # noqa: PLR2004
    return f"{watt_hours / size:,.{places}f} {unit}"


def ratio_text(ratio: float, reach: float | None = None) -> str:
    """A ratio with as many digits as its interval's half width leaves meaning: 1.07, 1.0652, 1.1."""
    if not reach:
        return f"{ratio:.3f}"
    return f"{ratio:.{min(max(1 - math.floor(math.log10(reach)), 1), 5)}f}"


def usd_text(usd: float) -> str:
    """Money in US dollars."""
    return f"${usd:,.2f}"


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def _three_digits(number: float) -> str:
    """Three significant digits without an exponent: 0.0123, 4.1, 35.7, 1,230."""
    rounded = _rounded(number)
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"  # noqa: PLR2004


def measured_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """A measured number with its interval: 12.3 s (11.9 to 12.7 s). Without an interval, two digits and no more.
    Repeats that are all equal have no interval: 12.0 dB (equal in all).

    No digit is finer than a thirtieth of the interval's half width: what is beyond that is noise. An amount
    keeps one digit, so that it is not 0 beside an interval that says nothing: 5 (0 to 10,000). A difference may be 0.
    """
    if value is None:
        return "not known"
    scale, name = _scale_of(value, unit)
    shown = [None if number is None else number / scale for number in (value, low, high)]
    place = last_digit(shown[0] or 0.0, shown[1], shown[2])
    texts = [_to_place(number, place) for number in shown if number is not None]
    if value and low is not None and low >= 0:
        texts[0] = _to_place(value / scale, min(place, math.floor(math.log10(abs(value / scale)))))
    before, after = ("$", "") if unit == "usd" else ("", f" {name}" if name else "")
    if low is None or high is None:
        return f"{before}{texts[0]}{after}"
    if low == high:
        return f"{before}{texts[0]}{after} (equal in all)"
    return f"{before}{texts[0]}{after} ({before}{texts[1]} to {before}{texts[2]}{after})"


def measured_value_text(value: float, low: float | None, high: float | None, unit: str) -> str:
    """The number of `measured_text` without its interval."""
    return measured_text(value, low, high, unit).split(" (")[0]


def measured_pair_text(
    before: float, after: float, low: float | None, high: float | None, unit: str
) -> tuple[str, str]:
    """Two measured numbers in one unit with the same decimals: 0.500 and 0.499.

    As many decimals as the interval of their difference supports; without an interval, as many as show the difference.
    """
    scale, name = _scale_of(max(before, after, key=abs), unit)
    by = (after - before) / scale
    if low is not None and high is not None and high > low:
        place = last_digit(by, low / scale, high / scale)
    else:
        place = last_digit(max(before, after, key=abs) / scale, None, None)
        if by:
            place = min(place, math.floor(math.log10(abs(by))))
    money, behind = ("$", "") if unit == "usd" else ("", f" {name}" if name else "")
    first, second = (f"{money}{_to_place(number / scale, place)}{behind}" for number in (before, after))
    return first, second


def last_digit(value: float, low: float | None, high: float | None) -> int:
    """The power of ten of the last digit that means something: -1 is tenths."""
    if low is None or high is None:
        return math.floor(math.log10(abs(value))) - 1 if value else 0
    reach = (high - low) / 2
    if reach <= 0:
        # Repeats that are all equal: as many digits as anybody reads.
        return math.floor(math.log10(abs(value))) - 2 if value else 0
    power = math.floor(math.log10(reach))
    return power if reach >= 3 * 10.0**power else power - 1


def _to_place(number: float, place: int) -> str:
    rounded = round(number, -place)
    # Negative zero is zero.
    return f"{rounded + 0.0:,.{max(-place, 0)}f}"


def _scale_of(value: float, unit: str) -> tuple[float, str]:
    """What a number is divided by, and the name of the unit then."""
    size = abs(value)
    if unit == "bytes":
        return next(((b, name) for b, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")) if size >= b), (1, "B"))
    if unit == "s":
        if size < 0.1:  # noqa: PLR2004
            return 1e-3, "ms"
        scales = ((2 * _SECONDS_PER_DAY, _SECONDS_PER_DAY, "days"), (2 * _SECONDS_PER_HOUR, _SECONDS_PER_HOUR, "h"))
        found = ((by, name) for least, by, name in (*scales, (120, _SECONDS_PER_MINUTE, "min")) if size >= least)
        return next(found, (1, "s"))
    return (1, "") if unit == "usd" else (1, unit)
