"""A score as a person reads it in a terminal."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from foretune.core.units import GIB
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.backtests.scoring import BacktestScore, FitResult, Result

_NUM_WORST = 10


def print_score(score: "BacktestScore") -> None:
    """Residuals, figures by group, the worst rows, and what was left out and why."""
    out = console(markup=False)
    _print_rows(out, score.results)
    for heading, key in (
        ("kind of peak", lambda r: r.peak),
        ("source", lambda r: r.asked.source),
        ("model", lambda r: r.asked.model),
        ("base", lambda r: r.asked.base),
    ):
        _print_groups(out, heading, score.results, key)
    _print_left_out(out, score)
    _print_fits(out, score)
    _print_totals(out, score)


def _print_rows(out: "Console", results: Sequence["Result"]) -> None:
    rows = table("row", "source", "model", "peak", "published GiB", "predicted GiB", "error", "baseline error")
    for r in sorted(results, key=lambda r: -abs(r.error)):
        rows.add_row(
            r.asked.row_id,
            r.asked.source,
            r.asked.model,
            r.peak,
            f"{r.published_bytes / GIB:.2f}",
            f"{r.predicted_bytes / GIB:.2f}",
            f"{r.error:+.1%}",
            f"{r.baseline_error:+.1%}",
        )
    right(rows, 4, 5, 6, 7)
    out.print(rows)
    out.print()


def _print_groups(out: "Console", heading: str, results: Sequence["Result"], key: Callable[["Result"], str]) -> None:
    from foretune.backtests.scoring import percentile

    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    rows = table(heading, "rows", "median error", "p90 error", "signed median", "baseline median")
    for name, members in sorted(groups.items()):
        errors = sorted(abs(member.error) for member in members)
        p90 = percentile(errors, 0.9)
        assert p90 is not None, "a group has members"
        rows.add_row(
            name,
            str(len(members)),
            f"{median(errors):.1%}",
            f"{p90:.1%}",
            f"{median(member.error for member in members):+.1%}",
            f"{median(abs(member.baseline_error) for member in members):.1%}",
        )
    right(rows, 1, 2, 3, 4, 5)
    out.print(rows)
    out.print()


def _print_left_out(out: "Console", score: "BacktestScore") -> None:
    if not score.left_out:
        return
    reasons = Counter((row.source, row.reason) for row in score.left_out)
    rows = table("left out", "rows", "why")
    for (source, reason), count in sorted(reasons.items()):
        rows.add_row(source, str(count), reason)
    right(rows, 1)
    out.print(rows)
    out.print()


def _print_fits(out: "Console", score: "BacktestScore") -> None:
    wrong = [row for row in score.fits if _is_wrong(row)]
    if not wrong:
        return
    rows = table("verdict differs", "source", "model", "device", "published", "plan")
    for row in wrong:
        asked = row.asked
        rows.add_row(
            asked.row_id, asked.source, asked.model, asked.device or "?", "ran" if row.fitted else "OOM", row.verdict
        )
    out.print(rows)
    out.print()


def _is_wrong(row: "FitResult") -> bool:
    return row.verdict == "does not fit" if row.fitted else row.verdict != "does not fit"


def _print_totals(out: "Console", score: "BacktestScore") -> None:
    memory = score.as_dict()["memory"]
    if not score.results:
        out.print("No row with an exact peak could be planned.")
    else:
        out.print(
            f"{memory['num_rows']} of {memory['num_exact_rows']} rows with an exact peak: median error "
            f"{memory['median_abs_error']:.1%}, p90 {memory['p90_abs_error']:.1%}; parameters x bytes: "
            f"{memory['baseline_median_abs_error']:.1%}, p90 {memory['baseline_p90_abs_error']:.1%}",
            style="bold",
        )
    if score.oom_recall is not None:
        out.print(
            f"Out of memory: {memory['num_oom_rows']} rows, by the plan {memory['num_oom_refused']} do not fit, "
            f"tight: {memory['num_oom_tight']} ({memory['oom_tight_share']:.0%}); {score.oom_recall:.0%} recognised"
        )
    if score.false_refusals is not None:
        out.print(
            f"Ran: {memory['num_fitting_rows']} rows, by the plan {memory['num_fitting_refused']} do not fit "
            f"({score.false_refusals:.1%} false refusals), tight: {memory['num_fitting_tight']} "
            f"({memory['fitting_tight_share']:.0%})"
        )
    if score.verdict_skill is not None:
        out.print(f"Verdict score: {score.verdict_skill:.2f} bits; always right 0.93, always tight 0")
    if score.not_judged:
        out.print(
            f"No trace, so not judged: {', '.join(row.row_id for row in score.not_judged)}. "
            "To record them, which needs torch, run: foretune backtest --live"
        )
