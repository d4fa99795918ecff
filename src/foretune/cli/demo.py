"""`foretune demo`: from a forecast to a report in three minutes, on a laptop's CPU."""

import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.extras import require
from foretune.cli.quiet import quieten

if TYPE_CHECKING:
    from foretune.run.demo.running import DemoRun

_MODEL = "flux.1-dev"
_QUESTION = "method.kind=lora"
_CARDS = "rtx-3060,rtx-4090,l40s,a100-80gb-sxm,h100-sxm"
_REPORT, _PLAN = "report.html", "plan.html"


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where everything is written.")] = Path("foretune-demo"),
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = True,
) -> None:
    """Plan, fine-tune, evaluate, compare, report: on a laptop CPU in three minutes. Example: foretune demo"""
    require("train", "The demonstration")
    begin_s = time.monotonic()
    page = folder / _REPORT
    typer.secho("1. Does LoRA of FLUX.1-dev fit? Five cards, asked without one of them and without weights.", bold=True)
    folder.mkdir(parents=True, exist_ok=True)
    _plan_real_model(folder / _PLAN)
    typer.secho("2. A small FLUX that draws shapes learns to put a frame around them, three ways.", bold=True)
    made = _train_small_model(folder, begin_s)
    typer.secho("\n3. Which way is best, and what is it worth?", bold=True)
    from foretune.cli.report import report

    report([made.folder], output=page, title="Foretune demo: a small FLUX learns a style")
    from foretune.core.units import duration_text

    num_failed = sum(one.problem is not None for one in made.done)
    typer.echo(f"The forecast as a page: {folder / _PLAN}")
    typer.echo(f"The study, to change and run again: foretune study {made.file} --studies {folder}")
    typer.secho(f"\nDone in {duration_text(time.monotonic() - begin_s)}. Report: {page}", bold=True)
    if num_failed:
        typer.secho(f"{num_failed} of {len(made.done)} trainings failed; the report says why.", fg="red", err=True)
        raise typer.Exit(1)
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        typer.echo("No browser was found here: open the report by hand.")


def _plan_real_model(page: Path) -> None:
    from foretune.cli.files import write_file
    from foretune.cli.plan_text import print_advice, print_verdicts
    from foretune.cli.question_text import question_text
    from foretune.cli.tables import console
    from foretune.planner.asking import Wanted, devices_named, plan_everything
    from foretune.reports.plan_page import plan_page

    wanted = Wanted(target=_MODEL, overrides=(_QUESTION,))
    ((asked, plans),) = plan_everything(wanted, devices_named(_CARDS), None)
    out = console()
    print_verdicts(out, plans)
    print_advice(out, plans)
    write_file(page, plan_page(plans, {plans[0].experiment: question_text(asked)}))


def _train_small_model(folder: Path, begin_s: float) -> "DemoRun":
    from foretune.run.busyness import BusyWatch

    watch = BusyWatch()
    quieten()
    from foretune.cli.plan import Recording
    from foretune.cli.progress import ProgressObserver
    from foretune.run.demo.running import run_demo
    from foretune.run.forecast import plan_here

    with ProgressObserver() as observer:
        watch.warn(observer)
        recording = Recording(lambda _: None)
        return run_demo(folder, observer, lambda asked: plan_here(asked, recording, observer.message), begin_s=begin_s)
