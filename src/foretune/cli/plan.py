"""`foretune plan`: what fits, before anything is downloaded."""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.extras import require
from foretune.cli.files import write_file
from foretune.cli.quiet import quieten

if TYPE_CHECKING:
    from foretune.catalog import Device, ModelComponent
    from foretune.choices.model import ModelReference
    from foretune.choices.step_form import StepForm
    from foretune.cli.plan_text import Groups
    from foretune.core.errors import UserError
    from foretune.core.values import StepTrace
    from foretune.planner.asking import LiveSource, Wanted
    from foretune.planner.host_memory import HostBudget
    from foretune.planner.sizing import StepSize
    from foretune.planner.traces import LiveTracer
    from foretune.trace.shipped import Geometry

_ALL = "all"
_COMMON = "common"


def plan(
    target: Annotated[
        str,
        typer.Argument(
            help="An experiment file, a model, or `all` models of the catalogue.", metavar="MODEL|EXPERIMENT|all"
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes: key=value ...", show_default=False, metavar="[KEY=VALUE]...")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Cards, separated by commas: 4090, h100, 16GiB, `here`; `all` of the catalogue; or `common`, one card "
            "of each size from 10 to 80 GB.",
        ),
    ] = _COMMON,
    ram: Annotated[
        str | None, typer.Option("--ram", help="Also judge the host's memory: 32GiB, or `here`.", show_default=False)
    ] = None,
    height: Annotated[int | None, typer.Option("--height", help="Pixels; without it, data.resolution decides.")] = None,
    width: Annotated[int | None, typer.Option("--width", help="Pixels; goes with --height.")] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", help="Frames of a video; the model's own if left out.")
    ] = None,
    expandable: Annotated[
        bool, typer.Option("--expandable-segments", help="As with PYTORCH_ALLOC_CONF=expandable_segments:True.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Break the figures down to parts and tensors.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Record the step now instead of reading its trace.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with pictures.")] = None,
) -> None:
    """Say what fits. Example: foretune plan flux.1-dev method.kind=lora --on rtx-4090,l4,h100-sxm"""
    # Hundreds of thousands of small objects that all stay: collecting garbage among them only costs time.
    gc.disable()
    from foretune.planner.asking import Wanted

    devices, host = _devices_and_host(target, tuple(overrides or ()), on, ram, is_live=live)
    wanted = Wanted(
        target=target,
        overrides=tuple(overrides or ()),
        height_px=height,
        width_px=width,
        num_frames=frames,
        expandable_segments=expandable,
        always_live=live,
        # An overview has no room for them.
        has_advice=target != _ALL or as_json or html is not None or explain,
        host=host,
    )
    refused = Refusals()
    groups = _planned(wanted, devices, refused)
    _answer(groups, html, as_json=as_json, explain=explain)
    refused.print()


def _devices_and_host(
    target: str, overrides: tuple[str, ...], on: str, ram: str | None, *, is_live: bool
) -> "tuple[list[Device], HostBudget | None]":
    """What `--on` and `--ram` mean. Where they are wrong, what else is wrong with the command is reported with them."""
    from foretune.core.errors import Mistakes
    from foretune.planner.asking import Wanted, check_question, devices_named
    from foretune.planner.host_memory import budget_named

    mistakes = Mistakes()
    devices = mistakes.attempt(devices_named, on, _note)
    host = None if ram is None else mistakes.attempt(budget_named, ram)
    if is_live:
        mistakes.attempt(require, "train", "Recording a step")
    if mistakes:
        check_question(Wanted(target=target, overrides=overrides), mistakes)
    mistakes.raise_all()
    assert devices is not None, "nothing was wrong with them"
    return devices, host


def _answer(groups: "Groups", html: Path | None, *, as_json: bool, explain: bool) -> None:
    from foretune.cli.plan_text import print_groups
    from foretune.cli.question_text import question_text

    plans = [one for _, group in groups for one in group]
    if html is not None:
        from foretune.reports.plan_page import plan_page

        write_file(html, plan_page(plans, {one[0].experiment: question_text(asked) for asked, one in groups}))
    if as_json:
        typer.echo(json.dumps([one.to_mapping() for one in plans], indent=2))
        return
    print_groups(groups, explain=explain)
    if not explain and len(groups) == 1:
        typer.secho("Phases, parts and assumptions: --explain. As a page: --html plan.html", dim=True)
    if html is not None:
        typer.echo(f"Wrote {html}")


def _planned(wanted: "Wanted", devices: "list[Device]", refused: "Refusals") -> "Groups":
    """The plans of every question; what cannot be planned is left with `refused`."""
    from foretune.planner.asking import plan_everything

    groups = []
    with _progress(wanted.target) as told:
        live = live_source(told, needed=wanted.always_live)
        for asked, found in plan_everything(wanted, devices, live, refused.add):
            groups.append((asked, found))
            note = asked.model.note
            if note is not None and f"model: {note}" not in asked.warnings:
                _note(note)
            told(f"planned {asked.experiment.model}")
    return groups


def _note(text: str) -> None:
    typer.echo(f"Note: {text}", err=True)


class Refusals:
    """Models that could not be planned, by the reason; printed where results do not go."""

    def __init__(self) -> None:
        self._models: dict[str, list[str]] = {}

    def add(self, model: str, error: "UserError") -> None:
        from foretune.core.errors import ExperimentErrors

        reasons = error.problems if isinstance(error, ExperimentErrors) else (str(error),)
        self._models.setdefault("; ".join(reasons), []).append(model)

    def print(self) -> None:
        if self._models:
            num_models = sum(map(len, self._models.values()))
            typer.echo(f"Not planned: {num_models} model{'s' if num_models > 1 else ''}", err=True)
        for reason, models in self._models.items():
            typer.echo(f"  {', '.join(models)}: {reason}", err=True)


def live_source(told: Callable[[str], None], *, needed: bool) -> "LiveSource | None":
    """Where torch is installed, steps can be recorded; it is imported when the first one is."""
    from importlib.util import find_spec

    if needed:
        require("train", "Recording a step")
    return Recording(told) if find_spec("torch") is not None and find_spec("diffusers") is not None else None


class Recording:
    """Records steps on fake tensors, and says so, because it takes seconds."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told

    def tracer(self, model: "ModelReference") -> "LiveTracer":
        def trace(form: "StepForm", size: "StepSize") -> "StepTrace":
            self._told("importing torch")
            quieten()
            from foretune.planner.traces import NotTraced
            from foretune.trace.live import LiveTraces, default_cache_dir, family_of
            from foretune.trace.program import IrregularStep
            from foretune.trace.tracing import StepSizes

            def progress(slug: str, number: int, total: int) -> None:
                self._told(f"recording {slug} on fake tensors, {number} of {total}")

            live = LiveTraces(family_of(model), default_cache_dir(), progress)
            sizes = StepSizes(
                batch_size=size.batch_size,
                height_px=size.height_px,
                width_px=size.width_px,
                num_text_tokens=size.num_text_tokens,
                num_frames=size.num_frames,
            )
            try:
                return live(form, sizes, size.rank)
            except IrregularStep as error:
                raise NotTraced(
                    f"This step ({form.slug()}) does not repeat itself as a plan needs it: {error}. "
                    "Leave one of its levers, or the quantisation, at its default"
                ) from error

        return trace

    def described(self, model: "ModelReference") -> "tuple[ModelComponent, Geometry]":
        self._told("importing torch")
        quieten()
        from foretune.trace.live import described, family_of

        return described(family_of(model), model.asked)


@contextmanager
def _progress(target: str) -> Iterator[Callable[[str], None]]:
    """A line on the other stream while it takes longer than a moment."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with console.status(f"Planning {target} ...") as status:
        yield lambda text: status.update(f"Planning {target}: {text} ...")
