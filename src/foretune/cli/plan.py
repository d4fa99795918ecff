"""`foretune plan`: what fits, before anything is downloaded."""

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.status import StatusObserver

if TYPE_CHECKING:
    from foretune.api.plan import Plans

_ALL = "all"
_COMMON = "common"


def plan(
    target: Annotated[
        str,
        typer.Argument(
            help="An experiment file, a configuration of another trainer, a model, or `all` models.",
            metavar="MODEL|EXPERIMENT|all",
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
    from foretune.api.plan import plan as plan_all

    has_menus = as_json or html is not None or explain or not _is_overview(target, on)
    with StatusObserver(f"Planning {target}") as observer:
        plans = plan_all(
            target,
            overrides,
            on=on,
            ram=ram,
            height=height,
            width=width,
            frames=frames,
            expandable_segments=expandable,
            live=live,
            advice="menu" if has_menus else "none" if target == _ALL else "first",
            observer=observer,
        )
    if html is not None:
        plans.write_page(html)
    _print(plans, html, explain=explain, as_json=as_json)
    _print_refused(plans)


def _is_overview(target: str, on: str) -> bool:
    """Whether the answer has no room for whole menus."""
    from foretune.reports.terminal.plans import MOST_WITH_MENUS

    return _ALL in (target, on.strip()) or on.count(",") >= MOST_WITH_MENUS


def _print(plans: "Plans", html: Path | None, *, explain: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(plans.to_mappings(), indent=2))
        return
    from foretune.reports.terminal.plans import print_groups
    from foretune.reports.terminal.tables import console

    print_groups(console(), plans.groups, explain=explain)
    if not explain and len(plans.groups) == 1:
        typer.secho("Phases, parts and assumptions: --explain. As a page: --html plan.html", dim=True)
    if html is not None:
        typer.echo(f"Wrote {html}")


def _print_refused(plans: "Plans") -> None:
    """Models that could not be planned, by the reason; where results do not go."""
    from foretune.api.plan import reasons

    if plans.refused:
        num_models = len(plans.refused)
        typer.echo(f"Not planned: {num_models} model{'s' if num_models > 1 else ''}", err=True)
    for reason, models in reasons(plans.refused).items():
        typer.echo(f"  {', '.join(models)}: {reason}", err=True)
