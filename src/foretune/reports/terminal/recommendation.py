"""What a search of devices and settings recommends."""

from typing import TYPE_CHECKING

from foretune.core.units import duration_text, memory_text, usd_text
from foretune.reports.remedy_words import settings_text
from foretune.reports.search_words import answer_title, device_text, effort_lines, outcome_text, question_line, why_text
from foretune.reports.terminal.plan_times import job_text, step_text
from foretune.reports.terminal.several_devices import run_or_runs_text, spot_lines
from foretune.reports.terminal.tables import right, table

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.config.reading import Asked
    from foretune.planner.search.searching import Answer


def print_recommendation(out: "Console", asked: "Asked", answer: "Answer") -> None:
    """The answer, its reasons, the runner-up, what is faster for more money, and what was not considered."""
    plan = answer.best.plan
    assert plan.time is not None, "a configuration without a time is not recommended"
    out.print(question_line(asked, answer))
    out.print(f"{answer_title(answer)}: {device_text(answer.best)}, {outcome_text(answer.best)}", style="bold")
    out.print(f"Settings: {settings_text(answer.best.words) or 'as they are'}")
    out.print(why_text(answer))
    out.print()
    out.print(step_text(plan.time))
    if plan.cost is not None:
        out.print(job_text(plan.cost))
        for line in spot_lines(plan.cost):
            out.print(line)
    if answer.run_or_runs is not None:
        out.print(run_or_runs_text(answer.run_or_runs))
    out.print()
    if len(answer.front) > 1:
        _print_front(out, answer)
        out.print()
    for line in effort_lines(answer):
        out.print(line, style="dim")
    for assumption in (*plan.connection, *plan.assumptions, *(plan.cost.assumptions if plan.cost else ())):
        out.print(f"Assumed: {assumption}", style="dim")


def _print_front(out: "Console", answer: "Answer") -> None:
    rows = table("faster for more money", "whole job", "cost", "step", "estimated", "settings")
    for choice in answer.front:
        assert choice.plan.time is not None, "a configuration without a time is not on the front"
        mark = " *" if choice is answer.best else ""
        rows.add_row(
            f"{device_text(choice)}{mark}",
            duration_text(choice.total_s),
            "" if choice.usd is None else usd_text(choice.usd),
            duration_text(choice.plan.time.step_s),
            memory_text(choice.plan.process_bytes),
            settings_text(choice.words),
        )
    right(rows, 1, 2, 3, 4)
    out.print(rows)
    if answer.best in answer.front:
        out.print("* recommended", style="dim")
