"""Predicted and published step times as a person reads them in a terminal."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.backtests.scale_scoring import ScaleScore
    from foretune.backtests.speed_scoring import SpeedScore

_NUM_WORST = 10


def print_speeds(score: "SpeedScore") -> None:
    """The worst rows, figures by group, what was left out and why, and the totals."""
    out = console(markup=False)
    if not score.results:
        out.print("No row with a speed could be planned.")
        return
    found = score.as_dict()
    _print_worst(out, found["speed_rows"])
    for heading in ("model", "device", "base"):
        _print_groups(out, heading, found["speed"][f"by_{heading}"])
    reasons = Counter((row["source"], row["reason"]) for row in found["speed_left_out"])
    rows = table("speed left out", "rows", "why")
    for (source, reason), count in sorted(reasons.items()):
        rows.add_row(source, str(count), reason)
    right(rows, 1)
    out.print(rows)
    out.print()
    _print_totals(out, found["speed"])


def print_scale(score: "ScaleScore") -> None:
    """The totals of speeds on several devices."""
    if not score.results:
        return
    found = score.as_dict()["scale"]
    growing = found["where_the_count_grows"]
    text = (
        f"{found['num_rows']} speeds on 8 devices and more: median error {found['median_abs_error']:.1%} of samples/s "
        "per device"
    )
    if growing["from_nothing"]["num_rows"]:
        text += (
            f"; on more devices than another row {growing['from_nothing']['median_abs_error']:.1%}, constant "
            f"efficiency {growing['constant_efficiency']['median_abs_error']:.1%}"
        )
    console(markup=False).print(text, style="bold")


def _print_worst(out: "Console", found: list[dict[str, Any]]) -> None:
    rows = table("step time", "model", "device", "published s", "predicted s", "error", "waits for")
    for row in sorted(found, key=lambda row: -abs(row["predicted_s"] / row["published_s"] - 1))[:_NUM_WORST]:
        rows.add_row(
            row["id"],
            row["model"],
            row["device"],
            f"{row['published_s']:.3g}",
            f"{row['predicted_s']:.3g}",
            f"{row['predicted_s'] / row['published_s'] - 1:+.0%}",
            row["bound_by"],
        )
    right(rows, 3, 4, 5)
    out.print(f"The {_NUM_WORST} worst step times:")
    out.print(rows)
    out.print()


def _print_groups(out: "Console", heading: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    rows = table(f"step times by {heading}", "rows", "median error", "p90 error")
    for name, some in groups.items():
        rows.add_row(name, str(some["num_rows"]), f"{some['median_abs_error']:.1%}", f"{some['p90_abs_error']:.1%}")
    right(rows, 1, 2, 3)
    out.print(rows)
    out.print()


def _print_totals(out: "Console", speed: Mapping[str, Any]) -> None:
    out.print(
        f"{speed['num_rows']} step times, each by constants fitted without its model: median error "
        f"{speed['median_abs_error']:.1%}, p90 {speed['p90_abs_error']:.1%}; a roofline of six constants: "
        f"{speed['baseline_median_abs_error']:.1%}, p90 {speed['baseline_p90_abs_error']:.1%}",
        style="bold",
    )
    for name, what in (
        ("device_left_out", "Without its device instead"),
        ("bound_by_device", "Where the device bounds the step"),
        ("checkpointing_ratios", "Ratio with to without checkpointing"),
        ("quantisation_ratios", "Ratio quantised to bf16"),
    ):
        some = speed[name]
        if some["num_rows"]:
            out.print(
                f"{what}: {some['num_rows']}, median error {some['median_abs_error']:.1%}, "
                f"p90 {some['p90_abs_error']:.1%}"
            )
