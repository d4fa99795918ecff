"""A sweep in the terminal: a line as each trial ends, and a table at the end."""

from typing import TYPE_CHECKING

import typer

from foretune.analyse.sweep_summary import number_text
from foretune.config.sweep_files import axis_word
from foretune.core.units import duration_text, measured_text, memory_text, rate_text, usd_text
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from foretune.analyse.sweep_findings import CompileCost, Ratio
    from foretune.analyse.sweep_summary import Combination, SweepSummary
    from foretune.choices.sweep import Objective
    from foretune.sweeps.controller import SweepProgress
    from foretune.sweeps.trial_results import TrialResult

_MOST_ROWS = 40
_MOST_REASON_LETTERS = 100


def trial_line(result: "TrialResult", progress: "SweepProgress") -> str:
    """One trial that has ended: batch_size 4, seed 0: 12.3 samples/s, 1.2 GiB."""
    planned = "" if progress.num_planned is None else f"/{progress.num_planned}"
    labels = ", ".join(f"{axis_word(axis)} {label}" for axis, label in result.labels.items())
    begin = f"[{progress.num_ended}{planned}] {labels}, seed {result.seed}: "
    if not result.is_done:
        reason = (result.outcome.reason or "").strip()
        short = reason if len(reason) <= _MOST_REASON_LETTERS else f"{reason[:_MOST_REASON_LETTERS]}..."
        return begin + (f"{result.outcome.kind}. {short}" if short else result.outcome.kind)
    numbers = result.numbers
    parts = []
    if numbers.samples_per_s:
        parts.append(rate_text(numbers.samples_per_s, "sample"))
    if numbers.measured_peak_bytes:
        planned_text = f" (planned {memory_text(numbers.planned_peak_bytes)})" if numbers.planned_peak_bytes else ""
        parts.append(f"peak {memory_text(numbers.measured_peak_bytes)}{planned_text}")
    if numbers.held_out_loss is not None:
        parts.append(f"held-out loss {numbers.held_out_loss:.4g}")
    elif numbers.last_loss is not None:
        parts.append(f"loss {numbers.last_loss:.4g}")
    parts.append(f"took {duration_text(result.outcome.seconds)}")
    return begin + ", ".join(parts) + (" (earlier)" if result.is_reused else "")


def progress_line(progress: "SweepProgress") -> str:
    """What runs now, time left, money spent."""
    parts = ["; ".join(progress.running[:2])] if progress.running else []
    if len(progress.running) > 2:  # noqa: PLR2004
        parts.append(f"and {len(progress.running) - 2} more")
    if progress.left_s is not None:
        parts.append(f"about {duration_text(progress.left_s)} left")
    if progress.usd is not None:
        parts.append(f"{usd_text(progress.usd)} spent")
    return "sweep" + (f" ({', '.join(parts)})" if parts else "")


def print_summary(summary: "SweepSummary") -> None:
    """The table by combination, then the recommendation."""
    axes = list(dict.fromkeys(axis for one in summary.combinations for axis in one.labels))
    columns = _columns(summary)
    costs = {cost.name: cost for cost in summary.compile_costs}
    compiling = ("compiles", "pays after") if costs else ()
    made = table(*(axis_word(axis) for axis in axes), *columns, *compiling, "outcome")
    right(made, *range(len(axes), len(axes) + len(columns) + len(compiling)))
    for one in summary.combinations[:_MOST_ROWS]:
        made.add_row(
            *(one.labels.get(axis, "") for axis in axes),
            *(_cell(one, column) for column in columns),
            *(_compiling(costs.get(one.name)) if costs else ()),
            _end(one),
        )
    console().print(made)
    if len(summary.combinations) > _MOST_ROWS:
        typer.echo(f"... and {len(summary.combinations) - _MOST_ROWS} more, in runs_summary.csv.")
    if any(n.low is not None for one in summary.combinations for n in one.numbers.values()):
        typer.echo("In brackets the 95 % interval of the mean over seeds.")
    for kind, reasons in _not_run(summary).items():
        typer.echo(f"{kind}: {reasons}")
    _print_best_batches(summary)
    _print_scaling(summary)
    typer.echo("")
    typer.echo(f"{summary.headline}.")
    if summary.detail:
        typer.echo(summary.detail)
    for finding in summary.findings:
        typer.echo(finding.sentence)
    for name in summary.pareto:
        typer.echo(f"  on the Pareto front: {name}")
    if summary.usd is not None:
        typer.echo(f"Spent: {usd_text(summary.usd)}")


def _not_run(summary: "SweepSummary") -> dict[str, str]:
    """Why combinations were refused: the reason once for all that share it."""
    refused: dict[str, list[str]] = {}
    for one in summary.combinations:
        if "refused" in one.outcomes and one.reason:
            refused.setdefault(one.reason, []).append(one.name)
    return {f"Refused ({'; '.join(names)})": reason for reason, names in refused.items()}


def _compiling(cost: "CompileCost | None") -> tuple[str, str]:
    """Seconds of compiling, and the steps after which it has paid."""
    if cost is None:
        return "", ""
    if cost.pays_after_steps is not None:
        return duration_text(cost.start_s), f"{cost.pays_after_steps:,} steps"
    return duration_text(cost.start_s), "never" if cost.why.startswith("never") else "not shown"


def _print_best_batches(summary: "SweepSummary") -> None:
    """AMD's form: a row for each precision, or whatever else differs."""
    if not summary.best_batches:
        return
    smallest = min(one.smallest for one in summary.best_batches)
    made = table("", f"samples/s, batch {smallest}", "at the best batch", "best batch", "gain")
    right(made, 1, 2, 3, 4)
    for one in summary.best_batches:
        made.add_row(
            one.fixed,
            f"{one.smallest_samples_per_s:.3g}" + ("" if one.smallest == smallest else f" (batch {one.smallest})"),
            f"{one.best_samples_per_s:.3g}",
            str(one.best),
            _times(one.gain),
        )
    typer.echo("\nOne device at the smallest and at the fastest batch:")
    console().print(made)


def _print_scaling(summary: "SweepSummary") -> None:
    if not summary.scaling:
        return
    made = table("", "devices", "samples/s", "efficiency")
    right(made, 1, 2, 3)
    for one in summary.scaling:
        efficiency = one.efficiency
        percent = measured_text(
            100 * efficiency.value,
            None if efficiency.low is None else 100 * efficiency.low,
            None if efficiency.high is None else 100 * efficiency.high,
            "%",
        )
        made.add_row(one.fixed, str(one.num_devices), f"{one.samples_per_s:.3g}", percent)
    typer.echo("\nScaling: speed of each device, beside that with the fewest devices:")
    console().print(made)


def _times(ratio: "Ratio") -> str:
    return f"{measured_text(ratio.value, ratio.low, ratio.high, '')} x"


def _columns(summary: "SweepSummary") -> list[str]:
    """Those that some combination has."""
    return [column for column, cell in _CELLS.items() if any(cell(one) for one in summary.combinations)]


def _cell(one: "Combination", column: str) -> str:
    return _CELLS[column](one)


def _number(objective: "Objective") -> "Callable[[Combination], str]":
    return lambda one: number_text(one, objective).replace(" samples/s", "") if objective in one.numbers else ""


_CELLS: "Mapping[str, Callable[[Combination], str]]" = {
    "samples/s": _number("speed"),
    "step": lambda one: "" if one.step_s is None else duration_text(one.step_s),
    "epoch": lambda one: "" if one.epoch_s is None else duration_text(one.epoch_s),
    "peak planned": lambda one: "" if one.planned_peak_bytes is None else memory_text(one.planned_peak_bytes),
    "peak measured": lambda one: memory_text(one.numbers["memory"].value) if "memory" in one.numbers else "",
    "held-out loss": _number("quality"),
    "price": _number("money"),
}


def _end(one: "Combination") -> str:
    if one.is_done:
        return "done"
    return ", ".join(kind if num == 1 else f"{num} x {kind}" for kind, num in one.outcomes.items())
