"""Plans as a person reads them in a terminal: a sentence, a table, a menu; details only where they are requested."""

from collections.abc import Iterator, Sequence, Sized
from textwrap import wrap
from typing import TYPE_CHECKING

from foretune.catalog import family_facts
from foretune.core.input_files import shown
from foretune.core.units import memory_text
from foretune.core.values.plan import HostMemory
from foretune.core.vocabulary import RunPhase
from foretune.reports.question_text import question_text
from foretune.reports.remedy_words import cost_text, effect_text, memory_of, settings_text
from foretune.reports.terminal.plan_details import print_details
from foretune.reports.terminal.plan_times import time_columns, time_lines
from foretune.reports.terminal.tables import right, table
from foretune.reports.workflow_words import misfits, workflow_lines

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.config.origin import Origin
    from foretune.config.reading import Asked
    from foretune.core.values import Plan
    from foretune.core.values.plan import Remedy

Groups = Sequence[tuple["Asked", tuple["Plan", ...]]]

STYLES = {"fits": "green", "tight": "yellow", "does not fit": "red"}
SYMBOLS = {"fits": "+", "tight": "~", "does not fit": "-"}
SHORT_VERDICTS = {"fits": "fits", "tight": "tight", "does not fit": "no"}
_MOST_COLUMNS = 8
_MOST_NAMES = 6
_WIDTH = 80
_INDENT = " " * 5
_MOST_MENUS = 3
"""More devices than that get the first line of their menu only, in the table."""
MOST_WITH_MENUS = 8
"""Devices. More of them are an overview."""


def print_groups(out: "Console", groups: Groups, *, explain: bool) -> None:
    """One question in full, several as an overview unless each is to be explained."""
    if len(groups) > 1 and not explain:
        print_overview(out, groups)
        return
    for asked, plans in groups:
        print_plans(out, asked, plans, explain=explain)


def print_plans(out: "Console", asked: "Asked", plans: tuple["Plan", ...], *, explain: bool) -> None:
    """One question on one or more devices."""
    out.print(f"{asked.experiment.model}: {question_text(asked)}, {_size(plans[0])}", style="bold")
    if asked.origin is not None:
        print_origin(out, asked.origin, explain=explain)
    out.print(answer_text(plans))
    out.print()
    print_verdicts(out, plans)
    print_advice(out, plans)
    for line in (*time_lines(plans), *validation_lines(plans), *workflow_lines(plans)):
        out.print(line)
    print_host(out, [plan.host for plan in plans])
    for warning in dict.fromkeys((*asked.warnings, *(text for plan in plans for text in plan.warnings))):
        out.print(f"Warning: {warning}", style="yellow")
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        out.print(f"Not counted: {note}", style="dim")
    family = asked.model.family
    is_untrainable = family is not None and asked.model.asked in family_facts(family).untrainable_models
    if family is not None and (is_untrainable or not family_facts(family).is_trainable):
        which = asked.model.asked if is_untrainable else f"{family} models"
        out.print(f"Foretune does not train {which} yet; the plan is for the same step in another program.")
    if explain:
        out.print()
        print_details(out, asked, plans)


def print_origin(out: "Console", origin: "Origin", *, explain: bool) -> None:
    """Whose training it is, what was assumed, and what of its configuration has no equivalent."""
    name = "" if origin.model is None else f" Its model is {shown(origin.model)}."
    proof = "compared with its published peaks" if origin.is_backtested else "read from its code, not measured"
    out.print(f"As {origin.title} runs {shown(origin.file)} ({proof}).{name}", markup=False)
    for text in origin.assumed:
        out.print(f"Assumed: {shown(text)}", style="dim", markup=False)
    for key, text in origin.lacking:
        out.print(f"No equivalent: {shown(key)}{f': {shown(text)}' if explain else ''}", style="dim", markup=False)
    if origin.unknown:
        out.print(f"Unknown keys: {shown(', '.join(origin.unknown))}", style="yellow", markup=False)


def answer_text(plans: Sequence["Plan"]) -> str:
    """The verdict in a sentence."""
    if len(plans) == 1:
        return _answer(plans[0])
    by_verdict = {
        verdict: [plan.device for plan in plans if plan.verdict == verdict]
        for verdict in ("fits", "tight", "does not fit")
    }
    words = {"fits": "Fits on", "tight": "Tight on", "does not fit": "Does not fit on"}
    return " ".join(f"{words[verdict]} {_counted(names)}." for verdict, names in by_verdict.items() if names)


def _answer(plan: "Plan") -> str:
    figures = f"{memory_text(plan.process_bytes)} estimated, {memory_text(plan.usable_bytes)} usable"
    where = "" if plan.worst_phase == RunPhase.STEP else f" The peak phase is {plan.worst_phase}."
    if plan.verdict == "fits":
        after = misfits(plan)
        if after:
            names = " or ".join(one.command for one in after)
            return f"Training fits on {plan.device}, but not {names}: {figures} for training.{where}"
        return f"Fits on {plan.device}: {figures}.{where}"
    first = ""
    if plan.remedies:
        verdict = "is tight" if plan.remedies[0].verdict == "tight" else "fits"
        first = f" With {settings_text(plan.remedies[0].settings)} it {verdict}."
    if plan.verdict == "tight":
        risk = "the driver may move memory to the host" if plan.pages_to_host else "it may run out of memory"
        return f"Tight on {plan.device}: {figures}; {risk}.{where}{first}"
    return f"Does not fit on {plan.device}: {figures}.{where}{first}"


def print_verdicts(out: "Console", plans: Sequence["Plan"]) -> None:
    """What each device has, what the run takes of it, how long it takes there, and whether it fits."""
    advises = not _are_shown(_menus(plans), plans) and any(plan.verdict != "fits" for plan in plans)
    is_timed = len(plans) > 1 and any(plan.time for plan in plans)
    columns = {
        "device": [plan.device for plan in plans],
        "usable": [memory_text(plan.usable_bytes) for plan in plans],
        "estimated": [memory_text(plan.process_bytes) for plan in plans],
    }
    if not (advises and is_timed):
        columns["low to high"] = [_band(plan) for plan in plans]
    if any(plan.validation is not None for plan in plans):
        columns["with validation"] = [_validation_cell(plan) for plan in plans]
    if is_timed:
        columns |= time_columns(plans)
    num_figures = len(columns)
    columns["verdict"] = [f"[{STYLES[plan.verdict]}]{SYMBOLS[plan.verdict]} {plan.verdict}[/]" for plan in plans]
    if advises:
        columns["to make it fit"] = [_first_words(plan) for plan in plans]
    rows = table(*columns)
    for cells in zip(*columns.values(), strict=True):
        rows.add_row(*cells)
    right(rows, *range(1, num_figures))
    out.print(rows)


def _validation_cell(plan: "Plan") -> str:
    if plan.validation is None:
        return ""
    style = STYLES[plan.validation.verdict] if plan.verdict == "fits" else ""
    text = memory_text(plan.at_peak.process_bytes)
    return f"[{style}]{text}[/]" if style else text


def _first_words(plan: "Plan") -> str:
    if plan.verdict == "fits":
        return ""
    if plan.remedies:
        tight = " (tight)" if plan.remedies[0].verdict == "tight" else ""
        return f"{settings_text(plan.remedies[0].settings)}{tight}"
    return f"a larger card: {plan.smallest_device}" if plan.smallest_device else "nothing found"


def print_advice(out: "Console", plans: Sequence["Plan"]) -> None:
    """Menus for devices that it does not surely fit on; for one that it fits on, what to do with the rest."""
    menus = _menus(plans)
    if menus and _are_shown(menus, plans):
        for lines, devices in menus.items():
            out.print()
            out.print(f"To make it fit on {_names(devices)}:", style="bold")
            for line in lines:
                out.print(line)
    elif menus:
        out.print()
        out.print("The whole menu for one device: foretune plan ... --on DEVICE", style="dim")
    if len(plans) == 1 and plans[0].headroom:
        out.print()
        out.print("To use the memory that is left:", style="bold")
        for line in _numbered(plans[0].headroom):
            out.print(line)
    out.print()


def _are_shown(menus: Sized, plans: Sized) -> bool:
    """Whether there is room for the menus; an overview has the first remedy in its table."""
    return len(menus) <= _MOST_MENUS and len(plans) <= MOST_WITH_MENUS


def _menus(plans: Sequence["Plan"]) -> dict[tuple[str, ...], list[str]]:
    """What to do, once for all devices with the same menu."""
    menus: dict[tuple[str, ...], list[str]] = {}
    for plan in plans:
        if plan.verdict != "fits":
            menus.setdefault(tuple(_menu(plan)), []).append(plan.device)
    return menus


def _menu(plan: "Plan") -> Iterator[str]:
    yield from _numbered(plan.remedies)
    number = len(plan.remedies) + 1
    if plan.smallest_device is not None:
        yield f"  {number}. A larger card: it fits unchanged on {plan.smallest_device}."
    elif plan.verdict == "tight":
        yield "  It may run as it is; no setting was found that makes sure of it."
    elif not plan.remedies:
        yield "  No setting was found that makes it fit, and it fits on no single device of the catalogue."


def _numbered(remedies: Sequence["Remedy"]) -> Iterator[str]:
    for number, remedy in enumerate(remedies, start=1):
        verdict = "" if remedy.verdict == "fits" else f", {remedy.verdict}"
        yield f"  {number}. {settings_text(remedy.settings)}  ({memory_of(remedy)}{verdict})"
        effect = effect_text(remedy)
        sentence = f"{effect[0].upper()}{effect[1:]}; {cost_text(remedy)}."
        yield from wrap(sentence, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def print_host(out: "Console", hosts: Sequence[HostMemory | None]) -> None:
    """The verdict over the host's memory, once for all devices with the same one."""
    for host in dict.fromkeys(found.model_dump_json() for found in hosts if found and found.verdict):
        found = HostMemory.model_validate_json(host)
        assert found.usable_bytes is not None, "it comes with the verdict"
        assert found.verdict is not None, "only such are printed"
        out.print(
            f"Host memory: {memory_text(found.likely_bytes)} estimated ({memory_text(found.low_bytes)} to "
            f"{memory_text(found.high_bytes)}, peak phase {found.peak_phase}), {memory_text(found.usable_bytes)} "
            f"usable: {found.verdict}",
            style=STYLES[found.verdict],
        )
        for line in found.advice:
            out.print(f"  {line}")


def validation_lines(plans: Sequence["Plan"]) -> Iterator[str]:
    """Where training fits and validation does not: it is skipped, and what to set so that it is not."""
    devices: dict[tuple[str, str], list[str]] = {}
    for plan in plans:
        if plan.verdict == "fits" and plan.validation is not None and plan.validation.verdict != "fits":
            key = (plan.validation.verdict, settings_text(plan.validation.settings))
            devices.setdefault(key, []).append(plan.device)
    for (verdict, settings), names in devices.items():
        advice = f" To avoid it: {settings}" if settings else ""
        risk = "may run out of memory" if verdict == "tight" else "runs out of memory"
        yield f"Validation {risk} on {_names(names)} and is then skipped; training continues.{advice}"


def print_overview(out: "Console", groups: Groups) -> None:
    """Many models: one row each."""
    devices = [plan.device for plan in groups[0][1]]
    shown = devices if len(devices) <= _MOST_COLUMNS else []
    rows = table("model", "step", "estimated", *(shown or ["smallest device that fits"]))
    for asked, plans in groups:
        first = plans[0]
        fitting = [plan.device for plan in plans if plan.verdict == "fits"]
        verdicts = [f"[{STYLES[p.verdict]}]{SYMBOLS[p.verdict]} {SHORT_VERDICTS[p.verdict]}[/]" for p in plans]
        cells = verdicts if shown else [fitting[0] if fitting else "none of them"]
        rows.add_row(asked.experiment.model, _size(first), memory_text(first.process_bytes), *cells)
    right(rows, 2)
    out.print(rows)
    out.print(
        f"{len(groups)} models on {len(devices)} device{'s' if len(devices) > 1 else ''}. "
        "Advice for one of them: foretune plan MODEL --on DEVICE",
        style="dim",
    )


def _size(plan: "Plan") -> str:
    sizes = plan.sizes
    frames = f" x {sizes['num_frames']} frames" if sizes["num_frames"] > 1 else ""
    return f"batch {sizes['batch_size']}, {sizes['width_px']} x {sizes['height_px']} px{frames}"


def _names(devices: Sequence[str]) -> str:
    return ", ".join(devices)


def _counted(devices: Sequence[str]) -> str:
    """All of a few; of many, how many."""
    return _names(devices) if len(devices) <= _MOST_NAMES else f"{len(devices)} devices"


def _band(plan: "Plan") -> str:
    """From low to high; a unit that both have is written once."""
    low, high = (memory_text(num_bytes) for num_bytes in (plan.process_low_bytes, plan.process_high_bytes))
    unit = high.rpartition(" ")[2]
    return f"{low.removesuffix(f' {unit}')} to {high}"
