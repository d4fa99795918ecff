"""Plans of inference in a terminal: a sentence, a table of devices, a table of phases, and what makes it fit."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from foretune.core.units import GIB, duration_text, measured_text, memory_text, usd_text
from foretune.core.values.inference_plan import InferencePlan, InferenceRemedy
from foretune.core.vocabulary import InferencePhase
from foretune.reports.terminal.plan_details import EVIDENCE
from foretune.reports.terminal.plans import SHORT_VERDICTS, STYLES, SYMBOLS, print_host
from foretune.reports.terminal.tables import right, table

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 80
_OPTIONS = {"adapter_rank": "adapter-rank", "vae_tiling": "vae-tiling"}


def print_inference_plans(out: "Console", plans: Sequence[InferencePlan], *, explain: bool) -> None:
    """One model's inference on one or more devices."""
    first = plans[0]
    out.print(f"{first.model}: {_question(first)}", style="bold")
    for line in wrap(_answer(plans), _WIDTH, break_on_hyphens=False):
        out.print(line)
    out.print()
    _print_devices(out, plans)
    out.print()
    _print_phases(out, first)
    out.print()
    for line in (*_times(plans), *_prices(plans), *_host(plans), *_remedies(plans)):
        for part in wrap(line, _WIDTH, subsequent_indent="  ", break_on_hyphens=False):
            out.print(part)
    print_host(out, [plan.host for plan in plans])
    for warning in dict.fromkeys(text for plan in plans for text in plan.warnings):
        out.print(f"Warning: {warning}", style="yellow")
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        out.print(f"Not counted: {note}", style="dim")
    if explain:
        _print_details(out, plans)
    else:
        out.print("Assumptions and traces: foretune plan ... --explain", style="dim")


def _question(plan: InferencePlan) -> str:
    """What is made, and how."""
    numbers = "" if plan.quantize == "none" else f", {plan.quantize} denoiser"
    adapter = "" if plan.adapter_rank is None else f", LoRA rank {plan.adapter_rank}"
    compiled = "" if plan.compile == "off" else ", compiled blocks"
    offload = {"none": "", "encoders": ", text encoders freed", "model": ", parts offloaded"}[plan.offload]
    tiling = ", VAE tiling" if plan.vae_tiling else ""
    frames = f" x {plan.num_frames} frames" if plan.num_frames > 1 else ""
    return (
        f"inference in {plan.precision}{numbers}{adapter}{compiled}{offload}{tiling}, batch {plan.batch_size}, "
        f"{plan.width_px} x {plan.height_px} px{frames}, {plan.num_inference_steps} steps"
    )


def _answer(plans: Sequence[InferencePlan]) -> str:
    names = {
        verdict: ", ".join(plan.device for plan in plans if plan.verdict == verdict)
        for verdict in ("fits", "tight", "does not fit")
    }
    words = {"fits": "Fits on", "tight": "Tight on", "does not fit": "Does not fit on"}
    verdicts = " ".join(f"{words[verdict]} {devices}." for verdict, devices in names.items() if devices)
    return f"{verdicts} The peak phase is {plans[0].worst_phase}."


def _print_devices(out: "Console", plans: Sequence[InferencePlan]) -> None:
    made = _made(plans[0])
    rows = table("device", "usable", "GiB (low to high)", made, "steps/s", f"1,000 {made}s", "verdict")
    for plan in plans:
        low, likely, high = (
            f"{num_bytes / GIB:.1f}"
            for num_bytes in (plan.process_low_bytes, plan.process_bytes, plan.process_high_bytes)
        )
        style, verdict = STYLES[plan.verdict], f"{SYMBOLS[plan.verdict]} {SHORT_VERDICTS[plan.verdict]}"
        rows.add_row(
            plan.device,
            f"{plan.usable_bytes / GIB:.1f}",
            f"{likely} ({low} to {high})",
            *_cells(plan),
            f"[{style}]{verdict}[/]",
        )
    right(rows, 1, 2, 3, 4, 5)
    out.print(rows)


def _cells(plan: InferencePlan) -> tuple[str, str, str]:
    """Time of an image, steps/s and the price; in parentheses where it does not fit."""
    if plan.time is None:
        return "", "", ""
    cells = (
        duration_text(plan.time.sample_s),
        f"{plan.time.denoising_steps_per_s:.3g}",
        "" if plan.usd_per_thousand is None else usd_text(plan.usd_per_thousand),
    )
    if plan.verdict != "does not fit":
        return cells
    image, steps, price = (f"({cell})" if cell else "" for cell in cells)
    return image, steps, price


def _print_phases(out: "Console", plan: InferencePlan) -> None:
    """Memory of tensors in each phase; the same on all devices."""
    parts = list(dict.fromkeys(part for phase in plan.phases for part in phase.device_bytes_by_part))
    rows = table("tensors by phase", *parts, "together")
    for phase in plan.phases:
        cells = [
            memory_text(phase.device_bytes_by_part[part]) if part in phase.device_bytes_by_part else ""
            for part in parts
        ]
        rows.add_row(phase.phase, *cells, memory_text(phase.device_bytes))
    right(rows, *range(1, len(parts) + 2))
    out.print(rows)


def _times(plans: Sequence[InferencePlan]) -> Iterator[str]:
    """The time of one device with its parts; of several, only why some have none."""
    reasons: dict[str, list[str]] = {}
    for plan in plans:
        if plan.no_time is not None:
            reasons.setdefault(f"No time, not known: {plan.no_time}", []).append(plan.device)
    for reason, devices in reasons.items():
        yield reason if len(devices) == len(plans) else f"{', '.join(devices)}: {reason}"
    timed = [plan.time for plan in plans if plan.time is not None]
    if not timed:
        return
    time, plan = timed[0], plans[0]
    if len(plans) == 1:
        batch = "Time" if plan.batch_size == 1 else f"Time of a batch of {plan.batch_size}"
        total = measured_text(time.total_s, time.low_s, time.high_s, "s")
        parts = {
            InferencePhase.ENCODE: time.encoding_s,
            f"{plan.num_inference_steps} denoising steps": plan.num_inference_steps * time.step_s,
            InferencePhase.DECODE: time.decoding_s,
        }
        words = ", ".join(f"{name} {duration_text(part)}" for name, part in parts.items() if part)
        yield f"{batch} {total}: {words}."
    if time.passes_per_step > 1:
        yield f"Guidance: {time.passes_per_step} forward passes of the denoiser in each step."
    elif time.samples_per_pass > plan.batch_size:
        yield f"Guidance: each denoising step is one forward pass of {time.samples_per_pass} samples."


def _prices(plans: Sequence[InferencePlan]) -> Iterator[str]:
    if len(plans) == 1 and plans[0].time is not None:
        (plan,) = plans
        if plan.usd_per_thousand is None or plan.usd_per_hour is None:
            yield f"No price: {plan.price_source}. Give one: foretune plan ... --price DEVICE=USD"
        else:
            made = f"1,000 {_made(plan)}s"
            yield f"{made}: {usd_text(plan.usd_per_thousand)} at {usd_text(plan.usd_per_hour)}/h ({plan.price_source})"


def _host(plans: Sequence[InferencePlan]) -> Iterator[str]:
    """Host memory without a verdict, once for all devices with the same need."""
    needs: dict[str, list[str]] = {}
    for plan in plans:
        if plan.host is not None and plan.host.verdict is None:
            need = f"{memory_text(plan.host.likely_bytes)} of host memory, most while {plan.host.peak_phase}"
            needs.setdefault(need, []).append(plan.device)
    for need, devices in needs.items():
        yield f"{need}." if len(devices) == len(plans) else f"{', '.join(devices)}: {need}."


def _remedies(plans: Sequence[InferencePlan]) -> Iterator[str]:
    for plan in plans:
        if plan.remedies:
            yield f"To make it fit on {plan.device}: {'; or '.join(map(_remedy, plan.remedies))}."
        elif plan.verdict == "does not fit" and len(plans) == 1:
            yield f"No setting was found that makes it fit on {plan.device}."


def _remedy(remedy: InferenceRemedy) -> str:
    options = " ".join(
        f"--{_OPTIONS.get(key, key)}{'' if value == 'true' else f' {value}'}" for key, value in remedy.settings.items()
    )
    verdict = "" if remedy.verdict == "fits" else f", {remedy.verdict}"
    result = "rounds the weights" if remedy.changes_the_result else "same weights"
    return f"{options} ({memory_text(remedy.process_bytes)}{verdict}; {result})"


def _made(plan: InferencePlan) -> str:
    return "clip" if plan.num_frames > 1 else "image"


def _print_details(out: "Console", plans: Sequence[InferencePlan]) -> None:
    for plan in plans:
        if plan.time is not None:
            out.print(f"{plan.device}: time from {EVIDENCE[plan.time.evidence]}", style="dim")
    for assumption in dict.fromkeys(text for plan in plans for text in plan.assumptions):
        out.print(f"Assumed: {assumption}", style="dim")
    for trace in plans[0].traces:
        out.print(f"Trace: {trace}", style="dim")
