"""Pieces of the pages, for notebooks: a table of plans, a run, a page in a frame."""

from collections.abc import Sequence
from pathlib import Path

from foretune.choices.running import Profile
from foretune.core.values import Plan, RunRecord
from foretune.reports.markup import Markup, tag
from foretune.reports.plan_question import answer_words, questions
from foretune.reports.plan_tables import device_table, remedy_table
from foretune.reports.terminal.run import run_lines

_FRAME_HEIGHT_PX = 600


def plans_fragment(plans: Sequence[Plan]) -> str:
    """The answer in a sentence, what each device has and takes, and what makes it fit."""
    parts: list[Markup] = []
    for question in questions(plans, {}):
        helped = [plan for plan in question.plans if plan.remedies or plan.headroom]
        parts.append(tag("h4", question.model))
        parts.append(tag("ul", (tag("li", words) for _, words in answer_words(question))))
        parts.append(device_table(question.plans))
        parts += [remedy_table(helped)] if helped else []
    return tag("div", parts)


def run_fragment(path: Path, record: RunRecord | None, profile: Profile | None) -> str:
    """How a run ended and what was measured."""
    lines = run_lines(path, record, profile)
    return tag("div", tag("h4", path.name), tag("ul", (tag("li", line) for line in lines)))


def embedded(page: str, title: str) -> str:
    """A whole page in a frame of its own: its style stays inside, and nothing in it can run."""
    style = f"width:100%;height:{_FRAME_HEIGHT_PX}px;border:1px solid #ccc"
    return tag("iframe", srcdoc=page, title=title, sandbox="", style=style)
