"""What a search of devices and settings recommends."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foretune.core.units import duration_text, memory_text, rounded_share_text, usd_text
from foretune.reports.remedy_words import settings_text
from foretune.reports.terminal.plan_times import job_text, step_text, time_cells
from foretune.reports.terminal.tables import right, table

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.config.reading import Asked
    from foretune.planner.search.searching import Answer, Choice

_WORDS = {"cheapest": "Cheapest", "fastest": "Fastest", "smallest": "Smallest device"}


def print_recommendation(out: "Console", asked: "Asked", answer: "Answer") -> None:
    """One sentence, the time and cost behind it, what costs more and is faster, and what was not considered."""
    out.print(sentence(asked, answer), style="bold")
    plan = answer.best.plan
    assert plan.time is not None, "a configuration without a time is not recommended"
    out.print(step_text(plan.time))
    if plan.cost is not None:
        out.print(job_text(plan.cost))
    if len(answer.front) > 1:
        out.print()
        _print_front(out, answer)
    out.print()
    for line in _not_considered(answer):
        out.print(line, style="dim")
    if plan.cost is not None:
        for assumption in (*plan.assumptions, *plan.cost.assumptions):
            out.print(f"Assumed: {assumption}", style="dim")


def sentence(asked: "Asked", answer: "Answer") -> str:
    """The recommendation with its reasons and the runner-up."""
    best = answer.best
    plan = best.plan
    assert plan.time is not None, "a configuration without a time is not recommended"
    memory = f"{memory_text(plan.process_bytes)} of {memory_text(plan.usable_bytes)}"
    found = (
        f"{_WORDS[answer.goal]} for {asked.experiment.model}: {_named(best)}, {_outcome(best)}; it fits in {memory}, "
        f"and the step is bound by {plan.time.bound_by}"
    )
    if answer.runner_up is None:
        return f"{found}."
    return f"{found}; runner-up {_named(answer.runner_up)}, {_outcome(answer.runner_up)}{_more(answer)}."


def _named(choice: "Choice") -> str:
    settings = settings_text(choice.words)
    return (
        f"{choice.plan.device} with {settings}" if settings else f"{choice.plan.device} with the settings as they are"
    )


def _outcome(choice: "Choice") -> str:
    cost = choice.plan.cost
    assert cost is not None, "a configuration without a cost is not recommended"
    price = "" if cost.usd is None else f" for {usd_text(cost.usd)}"
    return f"{duration_text(cost.total_s)}{price}"


def _more(answer: "Answer") -> str:
    """How much worse the runner-up is at what was searched for."""
    assert answer.runner_up is not None, "only with one"
    costs = (answer.best.plan.cost, answer.runner_up.plan.cost)
    figures = [None if c is None else c.usd if answer.goal == "cheapest" else c.total_s for c in costs]
    best, other = figures
    if answer.goal == "smallest" or not best or other is None:
        return ""
    share = other / best - 1
    # Both have the error of a step time: which of two is better is not sure below it.
    high = max(c.high_s / c.total_s - 1 for c in costs if c is not None)
    unsure = ", less than the error band" if share < high else ""
    return f" ({rounded_share_text(share)} more{unsure})"


def _print_front(out: "Console", answer: "Answer") -> None:
    rows = table("faster for more money", "settings", "estimated", "step", "whole job", "cost")
    for choice in answer.front:
        rows.add_row(
            choice.plan.device,
            settings_text(choice.words),
            memory_text(choice.plan.process_bytes),
            *time_cells(choice.plan),
        )
    right(rows, 2, 3, 4, 5)
    out.print(rows)


def _not_considered(answer: "Answer") -> Iterator[str]:
    yield (
        f"{answer.num_options:,} configurations: {answer.num_timed:,} timed, the memory of {answer.num_replayed:,} "
        "replayed; bounds rule out the others."
    )
    for reason, names in answer.left_out.items():
        yield f"Left out: {', '.join(names)}; not known: {reason}"
    for reason, number in answer.without_time.items():
        yield f"Without a step time: {number:,} configurations; not known: {reason}"
