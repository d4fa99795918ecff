"""`foretune backtest`: what the plan says about published measurements, against what was published."""

import gc
import json
from pathlib import Path
from typing import Annotated

import typer


def backtest(
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="A CSV file with the catalogue's columns, such as foretune bench --share writes; may be repeated. "
            "[default: the catalogue]",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Record steps the package has no trace of; takes minutes, and is kept.")
    ] = False,
) -> None:
    """Rerun the backtest: predicted memory and step times against published ones, beside trivial baselines."""
    from foretune.api.backtest import backtest as run_backtest
    from foretune.api.backtest import backtest_scale, backtest_shared, backtest_speeds, has_other_rows
    from foretune.cli.status import StatusObserver
    from foretune.reports.terminal.backtest import print_score
    from foretune.reports.terminal.backtest_speeds import print_scale, print_speeds
    from foretune.reports.terminal.shared_rows import print_shared

    # Hundreds of thousands of small objects, next to none of them in circles: looking for those costs a quarter.
    gc.disable()
    with StatusObserver("Running the backtest") as observer:
        files = data or None
        shared = None if files is None else backtest_shared(files, live=live, observer=observer)
        has_others = as_json or has_other_rows(files)
        score = run_backtest(files, live=live, processes=None, observer=observer) if has_others else None
        speeds = backtest_speeds(files, observer=observer) if has_others else None
        scale = backtest_scale(files, observer=observer) if has_others else None
    parts = [part for part in (score, speeds, scale, shared) if part is not None]
    if as_json:
        typer.echo(json.dumps({key: value for part in parts for key, value in part.as_dict().items()}, indent=2))
        return
    if score is not None:
        print_score(score)
    if speeds is not None:
        print_speeds(speeds)
    if scale is not None:
        print_scale(scale)
    if shared is not None:
        print_shared(shared)
