"""`foretune backtest`: what the plan says about published measurements, against what was published."""

import gc
import json
from pathlib import Path
from typing import Annotated

import typer


def backtest(
    data: Annotated[
        Path | None, typer.Option("--data", help="A CSV file with the catalogue's columns; without it, the catalogue.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Record steps the package has no trace of; takes minutes, and is kept.")
    ] = False,
) -> None:
    """Rerun the backtest: predicted memory and step times against published ones, beside trivial baselines."""
    from foretune.api.backtest import backtest as run_backtest
    from foretune.api.backtest import backtest_scale, backtest_speeds
    from foretune.cli.status import StatusObserver
    from foretune.reports.terminal.backtest import print_score
    from foretune.reports.terminal.backtest_speeds import print_scale, print_speeds

    # Hundreds of thousands of small objects, next to none of them in circles: looking for those costs a quarter.
    gc.disable()
    with StatusObserver("Running the backtest") as observer:
        score = run_backtest(data, live=live, processes=None, observer=observer)
        speeds = backtest_speeds(data, observer=observer)
        scale = backtest_scale(data, observer=observer)
    if as_json:
        typer.echo(json.dumps({**score.as_dict(), **speeds.as_dict(), **scale.as_dict()}, indent=2))
    else:
        print_score(score)
        print_speeds(speeds)
        print_scale(scale)
