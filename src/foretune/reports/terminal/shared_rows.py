"""A shared measurement before it is written, and the plan judged on such rows, in a terminal."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foretune.core.units import bytes_text, duration_text
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.backtests.shared.row_format import SharedRow
    from foretune.backtests.shared.scoring import RowComparison, SharedScore

_NONE = "-"


def row_lines(row: "SharedRow") -> list[str]:
    """Every cell that is not empty, as it will be written."""
    cells = {name: text for name, text in row.cells().items() if text}
    width = max(map(len, cells))
    return [f"  {name:{width}}  {text}" for name, text in cells.items()]


def print_shared(score: "SharedScore") -> None:
    """What was refused, and each row's memory and step time beside the plan and a rule of thumb."""
    out = console(markup=False)
    for one in score.refused:
        out.print(f"Refused: {one.reason}")
    if score.refused:
        out.print()
    _print_part(out, "peak memory", score.memory, lambda value: bytes_text(round(value)))
    _print_part(out, "step time", score.speed, duration_text)
    for one in score.not_forecast:
        out.print(f"No forecast for {one.row_id}, {one.reason}")
    if any(one.origin == "then" for one in (*score.memory, *score.speed)):
        out.print("* forecast by the release that measured, as the row has it: it cannot be repeated here.")
    figures = score.as_dict()["shared"]
    _print_total(out, "peak memory", figures["memory"], "parameters x bytes")
    _print_total(out, "step time", figures["speed"], "40 % of the device's peak")


def _print_part(out: "Console", what: str, rows: Sequence["RowComparison"], text: Callable[[float], str]) -> None:
    if not rows:
        return
    made = table(what, "model", "device", "measured", "planned", "low to high", "error", "baseline", "error")
    for one in sorted(rows, key=lambda one: -abs(one.error)):
        mark = "*" if one.origin == "then" else ""
        made.add_row(
            one.row.row_id,
            one.row.model,
            one.row.environment.device,
            _with_interval(one, text),
            f"{text(one.planned)}{mark}",
            f"{text(one.planned_low)} to {text(one.planned_high)}",
            f"{one.error:+.1%}",
            _NONE if one.baseline is None else text(one.baseline),
            _NONE if one.baseline_error is None else f"{one.baseline_error:+.1%}",
        )
    right(made, 3, 4, 5, 6, 7, 8)
    out.print(made)
    out.print()


def _with_interval(one: "RowComparison", text: Callable[[float], str]) -> str:
    if one.low is None or one.high is None:
        return text(one.measured)
    return f"{text(one.measured)} ({text(one.low)} to {text(one.high)})"


def _print_total(out: "Console", what: str, found: dict[str, Any], baseline: str) -> None:
    if not found["num_rows"]:
        return
    line = f"Shared measurements, {what}: {_errors(found, '')}, {found['num_in_band']} within the plan's band"
    if found["num_baseline_rows"]:
        line += f"; {baseline}: {_errors(found, 'baseline_')}"
    out.print(line, style="bold")


def _errors(found: dict[str, Any], who: str) -> str:
    num_rows, middle = found[f"num_{who}rows"], found[f"{who}median_abs_error"]
    if num_rows == 1:
        return f"1 row, error {middle:.1%}"
    return f"{num_rows} rows, median error {middle:.1%}, p90 {found[f'{who}p90_abs_error']:.1%}"
