"""How fast a device is, in a few lines."""

from typing import TYPE_CHECKING

from foretune.core.units import bytes_text, count_text, duration_text, flops_text, share_text
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from foretune.core.values.device_profile import DeviceProfile, MeasuredFormat, ProductPoint

_NARROW = 16
_LARGE = 256


def print_profile(profile: "DeviceProfile", path: "Path") -> None:
    """What a reader compares with a data sheet, and how sure it is."""
    out = console()
    threads = f", {profile.num_threads} thread{'s' if profile.num_threads > 1 else ''}"
    where = threads if profile.kind == "cpu" else ""
    out.print(f"{profile.device} ({profile.kind}{where}), torch {profile.torch}, measured {profile.measured_at[:10]}")
    shown = table("format", "large product", "rank 16", "attention", "attention backward")
    right(shown, 1, 2, 3, 4)
    for number_format in dict.fromkeys(point.number_format for point in profile.products):
        shown.add_row(number_format, *_rates(profile, number_format))
    out.print(shown)
    for line in _lines(profile):
        out.print(line)
    out.print(f"Stored in {path}", markup=False)


def _rates(profile: "DeviceProfile", number_format: "MeasuredFormat") -> "Iterator[str]":
    products = [p for p in profile.products if p.number_format == number_format and p.batch == 1]
    yield _best([p for p in products if min(p.m, p.n, p.k) >= _LARGE])
    yield _best([p for p in products if p.n == _NARROW and p.k >= _LARGE and p.m >= _LARGE])
    for is_backward in (False, True):
        points = [p for p in profile.attention if (p.number_format, p.is_backward) == (number_format, is_backward)]
        # Two products forward, five backward: the kernel recomputes the weights of attention.
        num_products = 5 if is_backward else 2
        rates = [2 * num_products * p.heads * p.queries * p.keys * p.head_dim / p.timing.seconds for p in points]
        yield f"{flops_text(max(rates))}/s" if rates else "-"


def _best(points: "list[ProductPoint]") -> str:
    if not points:
        return "-"
    return f"{flops_text(max(2 * p.m * p.n * p.k / p.timing.seconds for p in points))}/s"


def _lines(profile: "DeviceProfile") -> "Iterator[str]":
    sums = [point for point in profile.memory if point.operator == "add"]
    if sums:
        fastest = max(sums, key=lambda point: point.num_bytes / point.timing.seconds)
        largest = max(sums, key=lambda point: point.num_bytes)
        yield (
            f"Memory: {_bandwidth(largest.num_bytes, largest.timing.seconds)} at {bytes_text(largest.num_bytes)}, "
            f"up to {_bandwidth(fastest.num_bytes, fastest.timing.seconds)} at {bytes_text(fastest.num_bytes)}"
        )
    dispatch = profile.dispatch
    yield (
        f"Dispatch: {duration_text(dispatch.with_autograd.seconds)} an operator with autograd, "
        f"{duration_text(dispatch.call.seconds)} without"
    )
    if profile.copies:
        largest_copy = max(profile.copies, key=lambda point: point.num_bytes)
        yield f"Host to device: {_bandwidth(largest_copy.num_bytes, largest_copy.timing.seconds)}"
    for slow in profile.slow_formats:
        yield f"{slow} is slow here: only a few products were measured"
    num_points = sum(map(len, (profile.products, profile.convolutions, profile.attention, profile.memory)))
    yield (
        f"{count_text(num_points)} points, {profile.num_rounds} rounds in {duration_text(profile.took_s)}; half of "
        f"the samples are within {share_text(profile.spread)} of the fastest"
    )


def _bandwidth(num_bytes: int, seconds: float) -> str:
    return f"{num_bytes / seconds / 1e9:.3g} GB/s"
