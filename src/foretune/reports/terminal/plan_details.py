"""What `foretune plan --explain` adds: phases, parts, tensors, transfers, assumptions, traces."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foretune.core.units import bytes_text, duration_text, memory_text, rounded_share_text, share_text
from foretune.core.vocabulary import MemoryPart
from foretune.reports.terminal.plan_times import job_rows
from foretune.reports.terminal.tables import right, table

if TYPE_CHECKING:
    from rich.console import Console

    from foretune.config.reading import Asked
    from foretune.core.values import Plan

EVIDENCE = {
    "measured here": "speeds measured on this machine",
    "kernel tables": "published kernel times of this chip",
    "data sheet": "the data sheet and kernel times of other chips",
}


def print_details(out: "Console", asked: "Asked", plans: Sequence["Plan"]) -> None:
    _print_phases(out, plans[0])
    _print_parts(out, plans[0], asked.experiment.quantize.denoiser)
    _print_totals(out, plans)
    _print_transfers(out, plans)
    _print_jobs(out, plans)
    # Some are of one device alone.
    of_costs = [text for plan in plans if plan.cost is not None for text in plan.cost.assumptions]
    for assumption in dict.fromkeys((*(a for plan in plans for a in plan.assumptions), *of_costs)):
        out.print(f"Assumed: {assumption}", style="dim")
    for trace in plans[0].traces:
        out.print(f"Trace: {trace}", style="dim")


def _print_phases(out: "Console", plan: "Plan") -> None:
    rows = table("phase", "device", "host", "disk")
    for phase in plan.phases:
        disk = "depends on the data" if phase.disk_bytes is None else memory_text(phase.disk_bytes)
        host = "" if phase.host_bytes is None else memory_text(phase.host_bytes)
        mark = " (peak)" if phase.phase == plan.worst_phase else ""
        rows.add_row(phase.phase + mark, memory_text(phase.device_bytes), host, disk)
    for command in plan.commands:
        for phase in command.phases:
            host = "" if phase.host_bytes is None else memory_text(phase.host_bytes)
            name = f"{command.command}: {phase.phase}"
            rows.add_row(name, memory_text(phase.device_bytes), host, memory_text(phase.disk_bytes or 0))
    right(rows, 1, 2, 3)
    out.print(rows)
    out.print()


def _print_parts(out: "Console", plan: "Plan", base: str) -> None:
    """`base`: what the linear layers of the base are quantised to."""
    names: dict[str, str] = (
        {MemoryPart.FROZEN_WEIGHTS: f"frozen weights ({base})"} if base not in ("none", "float8-training") else {}
    )
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


def _print_totals(out: "Console", plans: Sequence["Plan"]) -> None:
    totals = table("device", "allocated", "reserved", "process", "usable")
    for plan in plans:
        figures = (plan.allocated_bytes, plan.reserved_bytes, plan.process_bytes, plan.usable_bytes)
        totals.add_row(plan.device, *map(bytes_text, figures))
    right(totals, 1, 2, 3, 4)
    out.print(totals)
    out.print(
        "allocated: tensors and workspaces. reserved: what the allocator holds for them. process: with the driver's "
        "context and libraries.",
        style="dim",
    )
    out.print()


def _print_jobs(out: "Console", plans: Sequence["Plan"]) -> None:
    """What the parts of a job take on each device, and how busy the device is."""
    timed = [plan for plan in plans if plan.time is not None]
    costs = [(plan.device, plan.cost) for plan in timed if plan.cost is not None]
    if costs:
        names = [name for name, _ in job_rows(costs[0][1])]
        jobs = table("device", *names, "in all")
        for device, cost in costs:
            texts = ["not known" if s is None else duration_text(s) for _, s in job_rows(cost)]
            jobs.add_row(device, *texts, duration_text(cost.total_s))
        right(jobs, *range(1, len(names) + 2))
        out.print(jobs)
    for plan in timed:
        assert plan.time is not None, "only such are listed"
        busy = [
            f"{what} {share_text(share)}"
            for what, share in (
                ("model", plan.time.model_utilisation),
                ("with what is recomputed", plan.time.hardware_utilisation),
            )
            if share is not None
        ]
        of_peak = f", of the peak: {', '.join(busy)}" if busy else ""
        out.print(f"{plan.device}: step time from {EVIDENCE[plan.time.evidence]}{of_peak}")
    if timed:
        out.print()


def _print_transfers(out: "Console", plans: Sequence["Plan"]) -> None:
    """Host-device traffic, once; and how long it takes at least, for each device."""
    moving = [(plan, plan.transfers) for plan in plans if plan.transfers is not None]
    if not moving:
        return
    _, first = moving[0]
    out.print(
        f"Host-device traffic per step: {memory_text(first.to_host_bytes)} to the host, "
        f"{memory_text(first.to_device_bytes)} to the device. Least time for it:"
    )
    for plan, transfers in moving:
        assumed = " (assumed)" if transfers.is_link_assumed else ""
        hidden = None if plan.time is None else plan.time.hidden_copy_share
        behind = f"; {rounded_share_text(hidden)} of the copies are hidden behind computation" if hidden else ""
        out.print(f"  {plan.device}: {duration_text(transfers.least_s)} over {transfers.link}{assumed}{behind}")
    out.print()
