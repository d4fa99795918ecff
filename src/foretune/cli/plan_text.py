"""Plans as a person reads them in a terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from foretune.cli.question_text import question_text
from foretune.cli.tables import console, right, table
from foretune.core.units import GIB, bytes_text, duration_text, share_text
from foretune.core.values.plan import HostMemory

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.config.reading import Asked
    from foretune.core.values import Plan
    from foretune.core.values.plan import Remedy

Groups = Sequence[tuple["Asked", tuple["Plan", ...]]]

_STYLES = {"fits": "green", "tight": "yellow", "does not fit": "red"}
_SYMBOLS = {"fits": "+", "tight": "~", "does not fit": "-"}
_SHORT = {"fits": "fits", "tight": "tight", "does not fit": "no"}
_MOST_COLUMNS = 8


def print_groups(groups: Groups, *, explain: bool) -> None:
    """One question in full, several as an overview unless each is to be explained."""
    if len(groups) > 1 and not explain:
        print_overview(groups)
        return
    for asked, plans in groups:
        print_plans(asked, plans, explain=explain)


def print_plans(asked: "Asked", plans: tuple["Plan", ...], *, explain: bool) -> None:
    """One question on several devices: the verdicts, then what they rest on, then what to do."""
    out = console()
    out.print(f"{asked.experiment.model}: {question_text(asked)}, {_size(plans[0])}", style="bold")
    print_verdicts(out, plans)
    out.print()
    _print_phases(out, plans[0])
    _print_transfers(out, plans)
    if explain:
        _print_parts(out, plans, asked.experiment.quantize.denoiser)
    print_remedies(out, plans)
    _print_host(out, plans)
    for warning in dict.fromkeys((*asked.warnings, *(text for plan in plans for text in plan.warnings))):
        out.print(f"Warning: {warning}", style="yellow")
    _print_small(out, plans, explain=explain)


def print_verdicts(out: "Console", plans: Sequence["Plan"]) -> None:
    """What each device has, what the training needs of it, and whether that fits."""
    rows = table("device", "has GiB", "needs GiB", "from", "to", "verdict", "hardest phase")
    for plan in plans:
        rows.add_row(
            plan.device,
            _gib(plan.usable_bytes),
            _gib(plan.process_bytes),
            _gib(plan.process_low_bytes),
            _gib(plan.process_high_bytes),
            f"[{_STYLES[plan.verdict]}]{_SYMBOLS[plan.verdict]} {plan.verdict}[/]",
            plan.worst_phase,
        )
    right(rows, 1, 2, 3, 4)
    out.print(rows)
    out.print(
        "needs: tensors at the peak, what the allocator holds beyond them, driver and libraries; from, to: the band",
        style="dim",
    )


def print_overview(groups: Groups) -> None:
    """Many models: one row each."""
    out = console()
    devices = [plan.device for plan in groups[0][1]]
    shown = devices if len(devices) <= _MOST_COLUMNS else []
    rows = table("model", "step", "allocated GiB", "hardest phase", *(shown or ["smallest that fits"]))
    for asked, plans in groups:
        first = plans[0]
        fitting = [plan.device for plan in plans if plan.verdict == "fits"]
        verdicts = [f"[{_STYLES[p.verdict]}]{_SYMBOLS[p.verdict]} {_SHORT[p.verdict]}[/]" for p in plans]
        cells = verdicts if shown else [fitting[0] if fitting else "none of them"]
        rows.add_row(asked.experiment.model, _size(first), _gib(first.allocated_bytes), first.worst_phase, *cells)
    right(rows, 2)
    out.print(rows)
    out.print(
        f"{len(groups)} models on {len(devices)} device{'s' if len(devices) > 1 else ''}. "
        "More about one: foretune plan MODEL --explain",
        style="dim",
    )


def _size(plan: "Plan") -> str:
    sizes = plan.sizes
    frames = f" x {sizes['num_frames']} frames" if sizes["num_frames"] > 1 else ""
    return f"{sizes['batch_size']} x {sizes['width_px']} x {sizes['height_px']} px{frames}"


def _print_phases(out: "Console", plan: "Plan") -> None:
    rows = table("phase", "device", "host", "disk")
    for phase in plan.phases:
        disk = "depends on the data" if phase.disk_bytes is None else bytes_text(phase.disk_bytes)
        host = "" if phase.host_bytes is None else bytes_text(phase.host_bytes)
        mark = " (hardest)" if phase.phase == plan.worst_phase else ""
        rows.add_row(phase.phase + mark, bytes_text(phase.device_bytes), host, disk)
    right(rows, 1, 2, 3)
    out.print(rows)
    out.print()


def _print_transfers(out: "Console", plans: Sequence["Plan"]) -> None:
    """What goes over the bus, once; and how long that takes at the least, for each device."""
    moving = [(plan.device, plan.transfers) for plan in plans if plan.transfers is not None]
    if not moving:
        return
    _, first = moving[0]
    out.print(
        f"Each step moves {bytes_text(first.to_host_bytes)} to the host and {bytes_text(first.to_device_bytes)} to the "
        "device. At the least that takes:"
    )
    for device, transfers in moving:
        assumed = " (assumed)" if transfers.is_link_assumed else ""
        out.print(f"  {device}: {duration_text(transfers.least_s)} over {transfers.link}{assumed}")
    out.print()


def _print_parts(out: "Console", plans: Sequence["Plan"], numbers: str) -> None:
    """`numbers`: what the linear layers of the base are kept in."""
    plan = plans[0]
    names = {"frozen weights": f"frozen weights ({numbers})"} if numbers not in ("none", "float8-training") else {}
    worst = next(phase for phase in plan.phases if phase.phase == plan.worst_phase)
    parts = table(f"part of the {plan.worst_phase}", "bytes", "share")
    for name, num_bytes in worst.device_bytes_by_part.items():
        parts.add_row(names.get(name, name), bytes_text(num_bytes), share_text(num_bytes / worst.device_bytes))
    right(parts, 1, 2)
    out.print(parts)
    out.print()
    largest = table("largest tensors", "each", "count", "together")
    for tensor in plan.largest:
        together = bytes_text(tensor.num_bytes * tensor.count)
        largest.add_row(names.get(tensor.part, tensor.part), bytes_text(tensor.num_bytes), str(tensor.count), together)
    right(largest, 1, 2, 3)
    out.print(largest)
    out.print()
    ladder = table("device", "allocated", "reserved", "process", "usable")
    for one in plans:
        figures = (one.allocated_bytes, one.reserved_bytes, one.process_bytes, one.usable_bytes)
        ladder.add_row(one.device, *map(bytes_text, figures))
    right(ladder, 1, 2, 3, 4)
    out.print(ladder)
    out.print()


def print_remedies(out: "Console", plans: Sequence["Plan"]) -> None:
    """What to do, once for all devices of which the same is to be said."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for plan in plans:
        if plan.verdict != "fits":
            groups.setdefault((plan.verdict, tuple(_advice(plan))), []).append(plan.device)
    for (verdict, lines), devices in groups.items():
        words = verdict if len(devices) == 1 else verdict.replace("does not", "do not")
        out.print(f"{', '.join(devices)}: {words}.", style=_STYLES[verdict])
        for line in lines:
            out.print(f"  {line}")
    if groups:
        out.print()


def _advice(plan: "Plan") -> Iterator[str]:
    yield from map(_remedy, plan.remedies)
    if plan.smallest_device is not None:
        yield f"As it is, the smallest device of the catalogue that it fits on is {plan.smallest_device}"
    elif not plan.remedies and plan.verdict == "tight":
        yield "It may run as it is; no setting was found that makes sure of it"
    elif not plan.remedies:
        yield "No setting and no single device of the catalogue makes it fit"


def _remedy(remedy: "Remedy") -> str:
    settings = " ".join(f"{key}={value}" for key, value in remedy.settings.items())
    cost = f", computes {share_text(remedy.extra_flops_share)} more" if remedy.extra_flops_share > 0 else ""
    if remedy.moves_bytes > 0:
        cost += f", moves {bytes_text(remedy.moves_bytes)} more in each step"
    effect = ", and changes what is trained" if remedy.changes_the_result else ""
    return f"{settings}  saves {bytes_text(remedy.saves_bytes)}{cost}{effect}: {remedy.verdict}"


def _print_host(out: "Console", plans: Sequence["Plan"]) -> None:
    """The verdict over the host's memory, once for all devices of which it is the same."""
    for host in dict.fromkeys(plan.host.model_dump_json() for plan in plans if plan.host and plan.host.verdict):
        found = HostMemory.model_validate_json(host)
        assert found.usable_bytes is not None, "it stands with the verdict"
        assert found.verdict is not None, "only such are printed"
        band = f"{bytes_text(found.low_bytes)} to {bytes_text(found.high_bytes)}"
        out.print(
            f"Host memory: {bytes_text(found.likely_bytes)} ({band}) in the phase '{found.peak_phase}', "
            f"{bytes_text(found.usable_bytes)} usable: {found.verdict}",
            style=_STYLES[found.verdict],
        )
        for line in found.advice:
            out.print(f"  {line}")


def _print_small(out: "Console", plans: Sequence["Plan"], *, explain: bool) -> None:
    # Some are of one device alone.
    out.print("Assumed: " + "; ".join(dict.fromkeys(a for plan in plans for a in plan.assumptions)), style="dim")
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        out.print(f"Not counted: {note}", style="dim")
    if explain:
        for trace in plans[0].traces:
            out.print(f"Trace: {trace}", style="dim")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}"
