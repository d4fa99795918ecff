"""A comparison in a table and a few sentences, or as plain data."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from foretune.analyse.quantities import STEP_TIME
from foretune.core.units import bytes_text, duration_text, rate_text, ratio_text, share_text
from foretune.reports.terminal.tables import console, right, table
from foretune.stats.deciding import SMALLEST_DIFFERENCE

if TYPE_CHECKING:
    from foretune.analyse.comparing import Compared, ComparedRuns
    from foretune.core.values.comparison import Comparison
    from foretune.stats.intervals import Estimate

_NO_DIFFERENCE = "~"
_VALUE_TEXTS: dict[str, Callable[[float], str]] = {
    "s": duration_text,
    "samples/s": lambda value: rate_text(value, "sample"),
    "image-steps/s": lambda value: rate_text(value, "image-step"),
    "images/s": lambda value: rate_text(value, "image"),
    "bytes": bytes_text,
    "": lambda value: f"{value:.4f}",
}


def print_compared(found: "ComparedRuns", name_a: str, name_b: str) -> None:
    """The table, then what it was made of, then what to beware of."""
    first = found.quantities[0]
    has_steps = first.comparison.quantity == STEP_TIME
    for side, name, estimate in (("a", name_a, first.a), ("b", name_b, first.b)):
        typer.echo(f"{side}: {name}: {made_of(estimate) if has_steps else 'no step times'}")
    typer.echo()
    made = table("quantity", "a", "b", "b / a", f"{share_text(first.decision.confidence)} interval", "runs", "answer")
    right(made, 1, 2, 3, 4, 5)
    for one in found.quantities:
        made.add_row(*_row(one))
    console().print(made)
    remarks = [*found.left_out, *_remarks(found)]
    if remarks:
        typer.echo()
    for remark in remarks:
        typer.echo(f"! {remark}")


def made_of(estimate: "Estimate") -> str:
    """n, what was dropped, and why: always said."""
    runs = "1 run" if estimate.num_runs == 1 else f"{estimate.num_runs} runs"
    dropped = "none left out"
    if estimate.num_dropped:
        dropped = f"{estimate.num_dropped} left out ({estimate.why_dropped})"
    return f"{runs}, {estimate.num_values} steps count, {dropped}"


def ratio_with_interval(comparison: "Comparison") -> tuple[str, str]:
    """The ratio, "~" where no difference was shown, and the interval; digits as the interval allows."""
    interval, ratio = comparison.interval, comparison.ratio
    if interval is None:
        return (_NO_DIFFERENCE if ratio is None else ratio_text(ratio)), "not known"
    assert ratio is not None, "an interval is one around a ratio"
    reach = (interval.high - interval.low) / 2
    shown = _NO_DIFFERENCE if comparison.answer == "no difference shown" else ratio_text(ratio, reach)
    return shown, f"{ratio_text(interval.low, reach)} to {ratio_text(interval.high, reach)}"


def _row(one: "Compared") -> tuple[str, ...]:
    comparison = one.comparison
    text = _VALUE_TEXTS[comparison.unit]
    values = ("not known" if estimate.value is None else text(estimate.value) for estimate in (one.a, one.b))
    runs = f"{one.decision.num_a} + {one.decision.num_b}"
    return comparison.quantity, *values, *ratio_with_interval(comparison), runs, comparison.answer


def _remarks(found: "ComparedRuns") -> list[str]:
    """Warnings, each once, and how many more runs an open question needs."""
    remarks = list(dict.fromkeys(warning for one in found.quantities for warning in one.comparison.warnings))
    remarks += [
        f"{one.comparison.quantity}: about {one.decision.num_more} more runs of each would show a difference of "
        f"{share_text(SMALLEST_DIFFERENCE)}"
        for one in found.quantities
        if one.decision.num_more is not None
    ]
    return remarks


def as_mapping(found: "ComparedRuns") -> dict[str, Any]:
    """Plain data: every comparison as it is stored, with what each side was made of."""
    return {
        "comparisons": [one.comparison.to_mapping() for one in found.quantities],
        "sides": [
            {"quantity": one.comparison.quantity, "a": asdict(one.a), "b": asdict(one.b)} for one in found.quantities
        ],
        "labels": list(found.labels),
        "left_out": list(found.left_out),
    }
