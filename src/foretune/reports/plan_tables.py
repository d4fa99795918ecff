"""The tables of a plan's page: the same figures as its charts, and what the charts cannot show."""

from collections.abc import Iterable, Mapping, Sequence

from foretune import catalog
from foretune.core.units import bytes_text, duration_text, usd_text
from foretune.core.values.plan import Plan, Remedy, Transfers
from foretune.reports.markup import Markup, join, tag
from foretune.reports.page import number, scrolled, swatch
from foretune.reports.plan_question import SYMBOLS, VERDICTS, Question, device_title
from foretune.reports.remedy_words import cost_text, effect_text, memory_of, settings_text

_NOTHING = tag("span", "–", class_="none")


def verdict_mark(verdict: str, *, begins: bool = False) -> Markup:
    """Symbol and word, which may begin a sentence: neither colour nor symbol has to be understood alone."""
    symbol = tag("span", SYMBOLS[verdict], aria_hidden="true")
    word = verdict.capitalize() if begins else verdict
    return tag("span", symbol, f" {word}", class_=f"verdict {_slug(verdict)}")


def overview_table(questions: Sequence[Question]) -> Markup:
    """Models by devices, the least need first, the least memory first."""
    plans = {plan.device: plan for question in questions for plan in question.plans}
    names = sorted(plans, key=lambda name: (plans[name].usable_bytes, name))
    head = tag(
        "tr",
        tag("th", "Model", scope="col"),
        tag("th", "Estimated", scope="col", class_="number"),
        (tag("th", tag("span", device_title(plans[name])), scope="col", class_="turned") for name in names),
    )
    differ = len({question.choices for question in questions}) > 1
    rows = [_overview_row(question, names, says_choices=differ) for question in questions]
    key = (tag("span", verdict_mark(verdict), class_="key") for verdict in VERDICTS)
    return join(
        scrolled(tag("table", tag("thead", head), tag("tbody", rows), class_="overview"), "Models and devices"),
        tag("p", key, class_="small"),
    )


def device_table(plans: Sequence[Plan]) -> Markup:
    """What each device can give, what is taken of it, and the verdict."""
    validates = any(plan.validation is not None for plan in plans)
    names = ["Usable", "Allocated", "Reserved", "Estimated", "Low to high"] + ["With validation"] * validates
    rows = []
    for plan in plans:
        band = f"{bytes_text(plan.process_low_bytes)} to {bytes_text(plan.process_high_bytes)}"
        figures = [plan.usable_bytes, plan.allocated_bytes, plan.reserved_bytes, plan.process_bytes]
        cells = [*(number(bytes_text(figure)) for figure in figures), number(band)]
        if validates:
            cells.append(number(_NOTHING if plan.validation is None else bytes_text(plan.at_peak.process_bytes)))
        rows.append([tag("td", verdict_mark(plan.verdict)), *cells])
    return _by_device(plans, ["Verdict"], names, rows, "Memory")


def time_table(plans: Sequence[Plan]) -> Markup:
    """How long each device takes and what the job costs there; nothing where no plan knows."""
    moves = any(plan.transfers is not None for plan in plans)
    times = [(plan.time, plan.cost) for plan in plans]
    if not moves and not any(time for time, _ in times):
        return Markup("")
    priced = any(cost is not None and cost.usd is not None for _, cost in times)
    spots = any(cost is not None and cost.spot is not None for _, cost in times)
    names = ["One step", "Low to high", "Whole job"] + ["Price"] * priced + ["On spot (expected)"] * spots
    names += ["Host-device traffic per step", "Least time for it"] * moves
    rows = []
    for plan, (time, cost) in zip(plans, times, strict=True):
        band = _NOTHING if time is None else f"{duration_text(time.low_s)} to {duration_text(time.high_s)}"
        cells = [
            number(_NOTHING if time is None else duration_text(time.step_s)),
            number(band),
            number(_NOTHING if cost is None else duration_text(cost.total_s)),
        ]
        if priced:
            cells.append(number(_NOTHING if cost is None or cost.usd is None else usd_text(cost.usd)))
        if spots:
            spot = None if cost is None else cost.spot
            cells.append(number(_NOTHING if spot is None or spot.usd is None else usd_text(spot.usd)))
        rows.append([*cells, *(_moved(plan.transfers) if moves else [])])
    return join(tag("h3", "Time and price"), _by_device(plans, [], names, rows, "Time and price"))


def _by_device(
    plans: Sequence[Plan], texts: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[Markup]], name: str
) -> Markup:
    head = tag(
        "tr",
        tag("th", "Device", scope="col"),
        (tag("th", text, scope="col") for text in texts),
        (tag("th", text, scope="col", class_="number") for text in numbers),
    )
    body = [
        tag("tr", tag("th", device_title(plan), scope="row"), cells) for plan, cells in zip(plans, rows, strict=True)
    ]
    return scrolled(tag("table", tag("thead", head), tag("tbody", body)), name)


def phase_table(plan: Plan, classes: Mapping[str, str]) -> Markup:
    """Parts by phases, with host memory and disk below."""
    head = tag(
        "tr",
        tag("th", "", scope="col"),
        (tag("th", phase.phase, scope="col", class_=_worst_class(plan, phase.phase)) for phase in plan.phases),
    )
    by_part = [phase.device_bytes_by_part for phase in plan.phases]
    rows = [
        tag(
            "tr",
            tag("th", swatch(classes[part]), part, scope="row"),
            (number(bytes_text(parts[part]) if parts.get(part) else _NOTHING) for parts in by_part),
        )
        for part in classes
        if any(part in parts for parts in by_part)
    ]
    totals = [
        _row("Device memory", [_known(phase.device_bytes) for phase in plan.phases], "sum"),
        _row("Host memory", [_known(phase.host_bytes) for phase in plan.phases]),
        _row("Disk", [_known(phase.disk_bytes) for phase in plan.phases]),
    ]
    return scrolled(tag("table", tag("thead", head), tag("tbody", rows), tag("tbody", totals)), "Phases")


def workflow_table(plans: Sequence[Plan]) -> Markup:
    """What each command after the training takes on each device and of its host."""
    head = tag(
        "tr",
        tag("th", "Device", scope="col"),
        tag("th", "Command", scope="col"),
        tag("th", "Verdict", scope="col"),
        (tag("th", name, scope="col", class_="number") for name in ("Estimated", "Peak phase", "Host memory")),
    )
    rows = [
        tag(
            "tr",
            tag("th", device_title(plan), scope="row"),
            tag("td", tag("code", f"foretune {command.command}")),
            tag("td", verdict_mark(command.verdict)),
            number(_known(command.process_bytes)),
            number(command.worst_phase),
            number(_NOTHING if command.host is None else bytes_text(command.host.likely_bytes)),
        )
        for plan in plans
        for command in plan.commands
    ]
    return scrolled(tag("table", tag("thead", head), tag("tbody", rows)), "After the training")


def tensor_table(plan: Plan, classes: Mapping[str, str]) -> Markup:
    """What the worst phase's peak is mostly made of."""
    head = tag(
        "tr",
        tag("th", "Part", scope="col"),
        (tag("th", name, scope="col", class_="number") for name in ("One tensor", "How many", "Together")),
    )
    rows = [
        tag(
            "tr",
            tag("th", swatch(classes.get(tensor.part)), tensor.part, scope="row"),
            number(bytes_text(tensor.num_bytes)),
            number(f"{tensor.count:,}"),
            number(bytes_text(tensor.num_bytes * tensor.count)),
        )
        for tensor in plan.largest
    ]
    return scrolled(tag("table", tag("thead", head), tag("tbody", rows)), "Largest tensors")


def remedy_table(plans: Iterable[Plan]) -> Markup:
    """For each device: settings that make it fit, or that use memory that is left, the best first."""
    names = (("Device", None), ("Settings", None), ("Estimated", "number"), ("What it does", None), ("Cost", None),
             ("Verdict", None))  # fmt: skip
    head = tag("tr", (tag("th", name, scope="col", class_=class_) for name, class_ in names))
    bodies = [tag("tbody", _remedy_rows(plan)) for plan in plans]
    return scrolled(tag("table", tag("thead", head), bodies, class_="remedies stacks"), "What to do")


def _moved(transfers: Transfers | None) -> list[Markup]:
    if transfers is None:
        return [number(_NOTHING)] * 2
    both = bytes_text(transfers.to_host_bytes + transfers.to_device_bytes)
    assumed = ", assumed" if transfers.is_link_assumed else ""
    return [number(both), number(f"{duration_text(transfers.least_s)} ({transfers.link}{assumed})")]


def _remedy_rows(plan: Plan) -> list[Markup]:
    rows = [_remedy_cells(remedy) for remedy in (plan.remedies or plan.headroom)]
    if plan.smallest_device is not None:
        known = catalog.devices().get(plan.smallest_device)
        title = plan.smallest_device if known is None else known.title
        none = "" if rows else "No settings found. "
        rows.append(tag("td", f"{none}A larger card: it fits unchanged on {title}", colspan=5))
    name = tag("th", device_title(plan), scope="rowgroup", rowspan=len(rows))
    return [tag("tr", Markup("") if place else name, row) for place, row in enumerate(rows)]


def _remedy_cells(remedy: Remedy) -> Markup:
    settings = (tag("code", settings_text({name: value})) for name, value in remedy.settings.items())
    effect = effect_text(remedy)
    return join(
        tag("td", settings, class_="settings"),
        tag("td", memory_of(remedy), class_="number", data_label="Estimated"),
        tag("td", f"{effect[0].upper()}{effect[1:]}", data_label="What it does"),
        tag("td", cost_text(remedy), data_label="Cost"),
        tag("td", verdict_mark(remedy.verdict), data_label="Verdict"),
    )


def _overview_row(question: Question, names: Sequence[str], *, says_choices: bool) -> Markup:
    verdicts = {plan.device: plan.verdict for plan in question.plans}
    cells = []
    for name in names:
        verdict = verdicts.get(name)
        if verdict is None:
            cells.append(tag("td"))
            continue
        hidden = tag("span", verdict, class_="hidden")
        symbol = tag("span", SYMBOLS[verdict], aria_hidden="true")
        cells.append(tag("td", symbol, hidden, class_=f"mark {_slug(verdict)}"))
    title = tag("a", question.model, href=f"#{question.key}")
    choices = tag("span", question.choices, class_="choices") if says_choices and question.choices else Markup("")
    return tag("tr", tag("th", title, choices, scope="row"), number(bytes_text(question.need_bytes)), cells)


def _row(name: str, texts: Sequence[str], class_: str | None = None) -> Markup:
    return tag("tr", tag("th", name, scope="row"), (number(text) for text in texts), class_=class_)


def _known(num_bytes: int | None) -> str:
    if num_bytes is None:
        return tag("span", "not known", class_="none")
    return bytes_text(num_bytes) if num_bytes else _NOTHING


def _worst_class(plan: Plan, phase: str) -> str:
    return "number worst" if phase == plan.worst_phase else "number"


def _slug(verdict: str) -> str:
    return {"fits": "fits", "tight": "tight", "does not fit": "fails"}[verdict]
