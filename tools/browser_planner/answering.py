"""The answer to a question of the planner's page as plain data: sentences, figures, pictures, an experiment file.

The words are those of the command line. Runs in the browser, and where answers are computed in advance.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foretune import catalog
from foretune.api.plan import plan as planned
from foretune.choices.method import METHODS
from foretune.config import Asked
from foretune.config.overrides import apply_overrides
from foretune.config.yaml_files import typed
from foretune.core.errors import ExperimentErrors, UserError
from foretune.core.observer import Observer
from foretune.core.units import GIB, memory_text
from foretune.core.values.plan import Plan, Remedy
from foretune.planner.overheads import usable_bytes
from foretune.reports.part_colours import colour_classes
from foretune.reports.plan_figure import NARROW, WIDE, draw
from foretune.reports.plan_question import chart_of, size_words
from foretune.reports.question_text import METHOD_NAMES, question_text
from foretune.reports.remedy_words import cost_text, effect_text, memory_of, settings_text
from foretune.reports.terminal.plan_times import time_lines
from foretune.reports.terminal.plans import answer_text, validation_lines
from foretune.trace.shipped import geometries
from tools.browser_planner.question import Question

MEMORY_SIZES_GIB = (8, 10, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 192)
"""What cards are sold with, for those who only know that."""


class _Listener(Observer):
    """Keeps what the planner says beside the plan."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def answer(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Answers what a form or a link holds. What the user can fix is an answer with `problems`."""
    try:
        question = Question.of(raw)
        return _answered(question)
    except ExperimentErrors as error:
        return {"problems": list(error.problems)}
    except UserError as error:
        return {"problems": [str(error)]}


def _answered(question: Question) -> dict[str, Any]:
    listener = _Listener()
    plans = planned(
        question.model,
        question.changes(),
        on=question.on,
        expandable_segments=question.expandable_segments,
        observer=listener,
    )
    if len(plans) != 1:
        raise UserError("Name one card or its memory, such as rtx-4090 or 16GiB")
    ((asked, (plan,)),) = plans.groups
    return {
        "command": question.command(),
        "subject": f"{asked.experiment.model}: {question_text(asked)}. {size_words(plan)}.",
        "verdict": plan.verdict,
        "sentence": answer_text((plan,)),
        "figures": _figures(plan),
        "drawings": _drawings(plan),
        "time": [*time_lines((plan,)), *validation_lines((plan,))],
        "remedies": [_advice(remedy) for remedy in plan.remedies],
        "headroom": [_advice(remedy) for remedy in plan.headroom],
        "larger_card": plan.smallest_device,
        "warnings": list(dict.fromkeys((*asked.warnings, *plan.warnings))),
        "fine_print": _fine_print(plan, listener.messages),
        "experiment": experiment_file(asked, plan),
        "numbers": numbers(plan),
    }


def numbers(plan: Plan) -> dict[str, Any]:
    """What two answers are compared by."""
    return {
        "process_low_bytes": plan.process_low_bytes,
        "process_bytes": plan.process_bytes,
        "process_high_bytes": plan.process_high_bytes,
        "usable_bytes": plan.usable_bytes,
        "step_s": None if plan.time is None else plan.time.step_s,
        "job_s": None if plan.cost is None else plan.cost.total_s,
        "usd": None if plan.cost is None else plan.cost.usd,
        "remedies": [[settings_text(remedy.settings), remedy.process_bytes] for remedy in plan.remedies],
    }


def _figures(plan: Plan) -> list[list[str]]:
    band = f"{memory_text(plan.process_low_bytes)} to {memory_text(plan.process_high_bytes)}"
    return [
        ["Estimated", memory_text(plan.process_bytes)],
        ["Low to high", band],
        ["Usable on the card", memory_text(plan.usable_bytes)],
        ["Peak phase", plan.worst_phase],
    ]


def _drawings(plan: Plan) -> dict[str, Any]:
    """The memory bars of the plan's page, for wide and narrow screens."""
    classes = colour_classes(part for phase in plan.phases for part in phase.device_bytes_by_part)
    chart = chart_of((plan,), classes)
    return {
        "wide": draw(chart, WIDE, "bars"),
        "narrow": draw(chart, NARROW, "bars"),
        "legend": [[part, name] for part, name in chart.classes.items()],
    }


def _advice(remedy: Remedy) -> dict[str, str]:
    effect = effect_text(remedy)
    verdict = "" if remedy.verdict == "fits" else f", {remedy.verdict}"
    return {
        "settings": settings_text(remedy.settings),
        "memory": f"{memory_of(remedy)}{verdict}",
        "words": f"{effect[0].upper()}{effect[1:]}; {cost_text(remedy)}.",
    }


def _fine_print(plan: Plan, messages: Sequence[str]) -> list[list[Any]]:
    of_cost = () if plan.cost is None else plan.cost.assumptions
    lists = (
        ("Notes", messages),
        ("Assumed", (*plan.assumptions, *of_cost)),
        ("Not counted", plan.notes),
        ("Recorded steps used", plan.traces),
    )
    return [[title, list(dict.fromkeys(lines))] for title, lines in lists if lines]


def experiment_file(asked: Asked, plan: Plan) -> str:
    """The experiment that was planned. Where it does not surely fit, with the first settings that make it fit."""
    remedy = plan.remedies[0] if plan.verdict != "fits" and plan.remedies else None
    settings = {} if remedy is None else remedy.settings
    overrides = [f"{key}={value}" for key, value in settings.items() if not key.isupper()]
    mapping = apply_overrides(asked.as_asked, overrides)
    return "\n".join((*_comments(plan, remedy), *(f"{key}: {typed(value)}" for key, value in mapping.items()), ""))


def _comments(plan: Plan, remedy: Remedy | None) -> Iterator[str]:
    variables = "" if remedy is None else " ".join(f"{k}={v}" for k, v in remedy.settings.items() if k.isupper())
    if remedy is None:
        yield f"# {answer_text((plan,))}"
    else:
        yield f"# Planned for {plan.device} with {settings_text(remedy.settings)}: {memory_of(remedy)} estimated."
    yield f"# Start it with: {f'{variables} ' if variables else ''}foretune train experiment.yaml"
    own = "data.kind=folder data.path=FOLDER"
    yield f"# Your own images, in place of synthetic ones: foretune train experiment.yaml {own}"


def choices() -> dict[str, Any]:
    """What the form offers."""
    rows, sizes = catalog.denoisers(), geometries()
    return {
        "models": [
            {
                "name": name,
                "family": row.family,
                "is_video": row.family_facts.is_video,
                "is_trainable": row.is_trainable,
                "size": f"{sizes[name].default_width_px} x {sizes[name].default_height_px}",
                "frames": sizes[name].default_num_frames,
            }
            for name, row in rows.items()
        ],
        "methods": [
            {"name": name, "title": METHOD_NAMES[name], "has_rank": "rank" in kind.model_fields}
            for name, kind in METHODS.items()
        ],
        "memory_sizes": [f"{gib}GiB" for gib in MEMORY_SIZES_GIB],
        "cards": [
            {"name": name, "title": card.title, "vendor": card.vendor, "usable_gib": round(usable_bytes(card) / GIB)}
            for name, card in catalog.devices().items()
        ],
    }
