"""One page for any number of plans: no scripts, nothing from elsewhere, the same bytes for the same plans."""

from collections.abc import Mapping, Sequence

from foretune import __version__
from foretune.core.errors import UserError
from foretune.core.units import bytes_text, share_text
from foretune.core.values.plan import Plan
from foretune.reports.markup import Markup, join, tag
from foretune.reports.page import document, swatch
from foretune.reports.part_colours import colour_classes
from foretune.reports.plan_figure import NARROW, WIDE, Chart, draw
from foretune.reports.plan_question import (
    MOST_NAMES,
    Question,
    answer_words,
    chart_of,
    device_title,
    listed,
    questions,
    size_words,
    worst_of,
)
from foretune.reports.plan_tables import (
    device_table,
    overview_table,
    phase_table,
    remedy_table,
    tensor_table,
    time_table,
    verdict_mark,
    workflow_table,
)
from foretune.reports.terminal.several_devices import several_devices_lines
from foretune.reports.workflow_words import workflow_lines


class NothingPlanned(UserError):
    """A page was asked for, but there is no plan to show."""


def plan_page(plans: Sequence[Plan], choices: Mapping[str, str] | None = None) -> str:
    """The whole HTML document. Plans of one experiment and model share a section; `choices` says for the hash of an
    experiment, in words, what was chosen: "LoRA of rank 16, bf16".
    """
    if not plans:
        raise NothingPlanned("There is no plan to put on a page. Name at least one model and one device.")
    asked = questions(plans, choices or {})
    classes = colour_classes(part for plan in plans for part in _parts(plan))
    main = tag("main", _head(asked), (_section(q, classes) for q in asked))
    return document(_title(asked), main, _foot(), style="plan_page.css")


def _title(asked: Sequence[Question]) -> str:
    models = list(dict.fromkeys(question.model for question in asked))
    return f"Training plan: {models[0]}" if len(models) == 1 else f"Training plan: {len(models)} models"


def _head(asked: Sequence[Question]) -> Markup:
    common = {question.choices for question in asked}
    overview = [
        tag("h2", "Overview"),
        tag("p", f"{asked[0].choices}.", class_="lead") if len(common) == 1 and asked[0].choices else Markup(""),
        overview_table(asked),
    ]
    intro = "What fine-tuning needs on each device, how long it takes and what it costs, before anything is downloaded."
    return join(
        tag(
            "header",
            tag("p", "Foretune", class_="brand"),
            tag("h1", "Training plan"),
            tag("p", intro, class_="lead"),
        ),
        tag("section", overview) if len(asked) > 1 else Markup(""),
        "\n",
    )


def _section(question: Question, classes: Mapping[str, str]) -> Markup:
    plan = question.plans[0]
    doing = ". ".join(text for text in (question.choices, f"{size_words(plan)}.") if text)
    footprints = question.footprints
    has_commands = any(plan.commands for plan in question.plans)
    helped = [plan for plan in question.plans if plan.remedies or plan.headroom or plan.smallest_device is not None]
    return tag(
        "section",
        tag("h2", question.model),
        tag("p", doing, class_="lead"),
        tag("ul", (tag("li", _answer(verdict, words)) for verdict, words in answer_words(question)), class_="answer"),
        (
            _footprint(plans, classes, f"{question.key}-{i}", apart=len(footprints) > 1)
            for i, plans in enumerate(footprints, start=1)
        ),
        tag("h3", "Memory of each device"),
        device_table(question.plans),
        tag("p", _band_words(question), class_="small"),
        time_table(question.plans),
        (tag("p", line) for plan in question.plans for line in several_devices_lines(plan)),
        [tag("h3", "After the training"), workflow_table(question.plans)] if has_commands else [],
        (tag("p", line) for line in workflow_lines(question.plans)),
        [tag("h3", "What to do"), remedy_table(helped)] if helped else [],
        (_breakdown(plans, classes, apart=len(footprints) > 1) for plans in footprints),
        _small_print(question),
        "\n",
        id=question.key,
    )


def _answer(verdict: str, words: str) -> Markup:
    """The verdict's words begin the sentence; they carry its mark."""
    return join(verdict_mark(verdict, begins=True), words[len(verdict) :])


def _footprint(plans: Sequence[Plan], classes: Mapping[str, str], key: str, *, apart: bool) -> Markup:
    chart, worst = chart_of(plans, classes), worst_of(plans[0])
    lows = list(dict.fromkeys(bytes_text(likely) for likely in chart.process_likely))
    key_figures = (
        ("Peak phase", worst.phase),
        ("Tensors at the peak", bytes_text(worst.device_bytes)),
        ("Estimated, whole process", " to ".join(lows)),
        ("Low to high", " to ".join(bytes_text(edge) for edge in chart.process_band)),
    )
    return join(
        tag("h3", f"On {_titles(plans)}") if apart else Markup(""),
        tag("dl", (tag("div", tag("dt", name), tag("dd", text)) for name, text in key_figures), class_="figures"),
        tag(
            "figure",
            draw(chart, WIDE, key),
            draw(chart, NARROW, key),
            tag("ul", (tag("li", swatch(c), part) for part, c in chart.classes.items()), class_="legend"),
            tag("figcaption", _caption(chart)),
        ),
    )


def _caption(chart: Chart) -> Markup:
    words = (
        "Bars: tensors on the device at the peak of each phase. Below them the whole process, with what allocator, "
        "driver and libraries add: the mark is the estimate, the band its error. Lines: usable memory of the devices."
    )
    beyond: list[Markup] = []
    for frame in (WIDE, NARROW):
        far = [f"{line.title} ({bytes_text(line.usable_bytes)})" for line in chart.beyond(frame)]
        if far:
            named = listed(far) if len(far) <= MOST_NAMES else f"{len(far)} devices, from {far[0]} to {far[-1]}"
            beyond.append(tag("span", f" Beyond the right edge: {named}.", class_=frame.name))
    return join(words, beyond)


def _band_words(question: Question) -> str:
    band = share_text(max(plan.error_band for plan in question.plans))
    return (
        "Fits: the high end is within the usable memory. Does not fit: even the low end is above it. Tight: between. "
        "The verdict is for training; a validation that runs out of memory is skipped. "
        "Usable: what the device can give to a process. Allocated: tensors and workspaces. Reserved: what the "
        "allocator holds for them. Estimated: the whole process with driver and libraries; low "
        f"and high allow for ±{band} of the reserved memory and for the measured spread of driver and libraries."
    )


def _breakdown(plans: Sequence[Plan], classes: Mapping[str, str], *, apart: bool) -> Markup:
    plan = plans[0]
    devices = f" on {_titles(plans)}" if apart else ""
    return join(
        tag("h3", f"Phases{devices}"),
        phase_table(plan, classes),
        [tag("h3", f"Largest tensors in {plan.worst_phase}{devices}"), tensor_table(plan, classes)]
        if plan.largest
        else [],
    )


def _small_print(question: Question) -> Markup:
    plans = question.plans
    lists = (
        ("Assumed", [text for plan in plans for text in (*plan.assumptions, *_of_the_cost(plan))]),
        ("Not counted", [text for plan in plans for text in plan.notes]),
        (
            "Recorded steps used",
            [*(text for plan in plans for text in plan.traces), f"experiment {plans[0].experiment}"],
        ),
    )
    return tag(
        "div",
        (
            tag("div", tag("h3", name), tag("ul", (tag("li", text) for text in dict.fromkeys(texts))))
            for name, texts in lists
            if texts
        ),
        class_="fine",
    )


def _of_the_cost(plan: Plan) -> tuple[str, ...]:
    return () if plan.cost is None else plan.cost.assumptions


def _titles(plans: Sequence[Plan]) -> str:
    return listed([device_title(plan) for plan in plans])


def _parts(plan: Plan) -> list[str]:
    return [part for phase in plan.phases for part in phase.device_bytes_by_part]


def _foot() -> Markup:
    return tag("footer", f"Foretune {__version__}. A forecast: nothing on this page was measured on these devices.")
