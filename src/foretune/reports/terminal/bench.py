"""What a bench found, in a terminal: typical values with their intervals, and what they were made of."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.analyse.series_answers import answers_of
from foretune.choices.inference import VARIANT_KEYS, MeasuredForm, form_of
from foretune.core.units import bytes_text, duration_text, flops_text, measured_text, share_text
from foretune.core.vocabulary import RunPhase
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from foretune.core.values import Plan
    from foretune.measure.bench import Bench
    from foretune.measure.bench_inference import InferenceBench, InferenceChoices
    from foretune.measure.bench_summary import Series
    from foretune.stats.break_even import BreakEven
    from foretune.stats.intervals import Estimate

_NONE = "-"
_DIGITS = 4
_COMMIT = re.compile(r" \([0-9a-f]{10}\)$")


def print_bench(bench: "Bench") -> None:
    """The table of a training bench and what stands around it."""
    choices, series = bench.choices, bench.series
    data = "synthetic data" if choices.is_synthetic else "the experiment's own data"
    typer.echo(f"Bench of {bench.name}: {_counted(choices.num_steps, 'step')}, {_repeats(choices.num_repeats)}, {data}")
    if bench.num_devices > 1:
        typer.echo(f"{bench.num_devices} devices: speeds are those of all, utilisation and memory those of the first.")
    typer.echo("")
    _print_speed(series)
    typer.echo("")
    for line in (
        *_utilisation(series),
        *_memory(series, bench.plan, is_synthetic=choices.is_synthetic),
        *_energy(series),
    ):
        typer.echo(line)
    typer.echo(_made_of(series.step_s))
    if bench.break_even is not None:
        for line in _compiled(bench.break_even):
            typer.echo(line)
    _warn(bench.warnings)
    typer.echo(f"Every step time is kept: {bench.path}")


def print_inference(bench: "InferenceBench") -> None:
    """The table of an inference bench."""
    choices = bench.choices
    preset = f" (preset {choices.preset})" if choices.preset else ""
    adapter = f" with {bench.adapter}" if bench.adapter else ""
    frames = f", {bench.num_frames} frames" if bench.num_frames else ""
    devices = choices.devices
    place = bench.device if devices == 1 else f"{devices} devices ({bench.device})"
    typer.echo(
        f"Inference of {bench.model}{adapter} on {place}: {bench.size_px} px{frames}, "
        f"{choices.precision}{_numbers(choices)}{preset}, {_repeats(choices.num_repeats)}"
    )
    if bench.is_reduced:
        tried = ", ".join(map(str, bench.did_not_fit))
        typer.secho(
            f"NOT the requested batch: {tried} did not fit into memory, so this is batch {bench.batch_size}, "
            "the largest that did when halving.",
            fg="yellow",
        )
    if devices > 1:
        typer.echo(f"{devices} devices: speeds are those of all, batches and memory those of one.")
    typer.echo("")
    made = table("", "typical", "95 % interval", "n")
    right(made, 1, 2, 3)
    rows = [
        (f"denoising steps/s, batch {bench.batch_size}", bench.mean_pass_s, float(devices)),
        ("image-steps/s", bench.mean_pass_s, float(bench.batch_size * devices)),
    ]
    if bench.image_batch_s is not None:
        steps = f"{choices.num_inference_steps} steps"
        rows.append(
            (
                f"images/s end to end, batch {choices.image_batch_size}, {steps}",
                bench.image_batch_s,
                float(choices.image_batch_size * devices),
            )
        )
    for name, estimate, count in rows:
        made.add_row(name, *_rate_cells(estimate, count))
    console().print(made)
    typer.echo("")
    for name, held in _kinds(bench.peak_device_bytes, bench.peak_reserved_bytes, bench.peak_host_bytes):
        typer.echo(f"Peak memory of denoising, {name}: {bytes_text(held)}")
    if choices.compile != "off":
        typer.echo(
            f"Compile: {duration_text(max(bench.start_s, 0.0))} of warm-up. For the break-even: "
            f"{_break_even_command(bench)}"
        )
    typer.echo("A denoising step is one pass of the denoiser; guidance that runs it twice takes two.")
    typer.echo(f"Denoising: {_made_of(bench.pass_s)}")
    _warn(tuple(f"Denoising: {warning}" for warning in bench.pass_s.warnings))
    if bench.image_batch_s is not None:
        typer.echo(f"Images: {_made_of(bench.image_batch_s)}")
        _warn(tuple(f"Images: {warning}" for warning in bench.image_batch_s.warnings))
    typer.echo(f"Every time is kept: {bench.path}")


def _break_even_command(bench: "InferenceBench") -> str:
    """Measures this bench with and without compiled blocks, in turns."""
    choices = bench.choices
    # The label of an adapter of the Hub ends with the commit that was read.
    adapter = None if bench.adapter is None else _COMMIT.sub("", bench.adapter)
    held = {**form_of(choices), "batch_size": bench.batch_size, "compile": "off", "adapter": adapter}
    usual = {**form_of(MeasuredForm()), "adapter": None}
    settings = [
        f"{key}={'true' if held[field] is True else held[field]}"
        for key, field in VARIANT_KEYS.items()
        if held[field] != usual[field]
    ]
    variants = {"plain": settings, "compiled": [*settings, f"compile={choices.compile}"]}
    words = ["foretune", "bench", bench.model, "--inference"]
    for name, pairs in variants.items():
        words += ["--variant", f"{name}:{','.join(pairs)}"]
    words += [] if choices.size_px is None else ["--size", str(choices.size_px)]
    words += [] if choices.num_frames is None else ["--frames", str(choices.num_frames)]
    return shlex.join(words)


def print_variants(study: "Mapping[str, Any]", path: "Path") -> None:
    """Ways to sample beside each other: what was measured, how the others compare with the first, and break-even."""
    typer.echo(study["held_equal"])
    typer.echo("")
    titles = list(dict.fromkeys(title for row in study["rows"] for title in row["values"]))
    made = table("", *titles)
    right(made, *range(1, len(titles) + 1))
    for row in study["rows"]:
        found = [row["values"].get(title) for title in titles]
        made.add_row(
            row["configuration"],
            *(_NONE if one is None else measured_text(one["value"], one["low"], one["high"], "") for one in found),
        )
    console().print(made)
    for sentence in answers_of(study, (), ""):
        typer.echo(sentence)
    _warn(tuple(study["warnings"]))
    typer.echo(f"Every time is kept: {path}")


def _counted(num: int, what: str) -> str:
    return f"{num} {what}" if num == 1 else f"{num:,} {what}s"


def _numbers(choices: "InferenceChoices") -> str:
    """What differs from the plain model."""
    found = [f"{choices.quantize} weights"] * (choices.quantize != "none")
    found += ["compiled blocks"] * (choices.compile != "off") + ["merged adapter"] * choices.merge
    return "".join(f", {one}" for one in found)


def _repeats(num: int) -> str:
    return f"{_counted(num, 'repeat')} in {'a fresh process' if num == 1 else 'fresh processes'}"


def _print_speed(series: "Series") -> None:
    made = table("", "typical", "95 % interval", "n")
    right(made, 1, 2, 3)
    step = series.step_s
    made.add_row("samples/s", *_rate_cells(series.mean_step_s, series.samples_per_step))
    made.add_row("iterations/s", *_rate_cells(series.mean_step_s, 1))
    value = _NONE if step.value is None else duration_text(step.value)
    # An interval may reach below zero, a time cannot.
    low = None if step.low is None else max(step.low, 0.0)
    made.add_row("step (median)", value, _interval(low, step.high, duration_text), _count(step))
    console().print(made)


def _rate_cells(estimate: "Estimate", count: float) -> tuple[str, str, str]:
    """The rate of something of which `count` are made in the time."""
    from foretune.stats.speed import rate_of

    rate = rate_of(estimate, count)
    if rate is None:
        return _NONE, _NONE, _count(estimate)
    value, low, high = rate
    return _number(value), _interval(low, high, _number), _count(estimate)


def _interval(low: float | None, high: float | None, text: Callable[[float], str]) -> str:
    """A rate whose time may be next to nothing has no upper end."""
    if low is None:
        return _NONE
    return f"{text(low)} or more" if high is None else f"{text(low)} to {text(high)}"


def _count(estimate: "Estimate") -> str:
    return f"{_counted(estimate.num_runs, 'run')}, {_counted(estimate.num_values, 'value')}"


def _number(value: float) -> str:
    return f"{value:.{_DIGITS}g}" if value < 10**_DIGITS else f"{value:,.0f}"


def _utilisation(series: "Series") -> list[str]:
    if series.model_utilisation is None or series.hardware_utilisation is None:
        return ["Utilisation: not known"]
    assert series.model_flops is not None, "a share has what it is a share of"
    assert series.peak_flops_per_s is not None, "a share has what it is a share of"
    line = (
        f"Utilisation: {share_text(series.model_utilisation)} of {flops_text(series.peak_flops_per_s)}/s "
        f"({series.peak_source}); the model needs {flops_text(series.model_flops)} a step"
    )
    if series.hardware_flops is not None and series.hardware_flops > series.model_flops:
        line += f"; {share_text(series.hardware_utilisation)} with recomputation ({flops_text(series.hardware_flops)})"
    return [line]


def _memory(series: "Series", plan: "Plan | None", *, is_synthetic: bool) -> list[str]:
    lines = []
    for name, measured in _kinds(series.peak_device_bytes, series.peak_reserved_bytes, series.peak_host_bytes):
        lines.append(f"Peak memory, {name}: measured {bytes_text(measured)}{_estimated(name, measured, plan)}")
    if plan is not None and is_synthetic and plan.worst_phase != RunPhase.STEP:
        lines.append(f"  (the estimate is for a whole run, whose peak is in the phase {plan.worst_phase!r})")
    return lines


def _kinds(device: int | None, reserved: int | None, host: int | None) -> list[tuple[str, int]]:
    named = (("device allocated", device), ("device reserved", reserved), ("host process", host))
    return [(name, held) for name, held in named if held is not None]


def _estimated(name: str, measured: int, plan: "Plan | None") -> str:
    """Tensors and allocator on a device, the whole process on the host where that is the device."""
    if plan is None:
        return ""
    on_host = plan.device == "here" and name == "host process"
    estimated = {"device allocated": plan.allocated_bytes, "device reserved": plan.reserved_bytes}.get(name)
    if estimated is None and on_host:
        estimated = plan.process_bytes
    if estimated is None:
        return ""
    return f", estimated {bytes_text(estimated)} ({estimated / measured - 1:+.1%})"


def _energy(series: "Series") -> list[str]:
    if series.energy_per_sample_j is None:
        return ["Energy: no sensor reported"]
    power = "" if series.mean_power_w is None else f", {series.mean_power_w:.0f} W on average"
    return [f"Energy: {series.energy_per_sample_j:.3g} J a sample{power}"]


def _made_of(estimate: "Estimate") -> str:
    total = estimate.num_values + estimate.num_dropped
    if not estimate.num_dropped:
        return f"No value was left out of {total}: no warm-up was found."
    return f"{estimate.num_dropped} of {total} values were left out: {estimate.why_dropped}."


def _compiled(found: "BreakEven") -> list[str]:
    plain = _NONE if found.plain.value is None else duration_text(found.plain.value)
    started = _NONE if found.started.value is None else duration_text(found.started.value)
    lines = [
        f"Compile: {duration_text(max(found.start_s, 0.0))} at the start; a step takes {started}, {plain} uncompiled"
    ]
    if found.step is not None:
        high = "no end" if found.high is None else f"{found.high:,}"
        lines.append(f"Break-even: after {found.step:,} steps (interval: {found.low or 1:,} to {high})")
    else:
        lines.append(f"Break-even: {found.why}")
    return lines


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in dict.fromkeys(warnings):
        typer.secho(f"Warning: {warning}", fg="yellow")
