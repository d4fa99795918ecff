"""`foretune report`: what a set of runs says, on one page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them, studies included.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    markdown: Annotated[Path | None, typer.Option("--markdown", help="The same as Markdown, in a file.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="One row a run, in a file.")] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="US dollars for an hour of one device; else the catalogue's.")
    ] = None,
    quality: Annotated[
        str | None, typer.Option("--quality", help="The metric that decides; else the first that all runs have.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Of the page.")] = None,
) -> None:
    """Report. Example: foretune report runs -o report.html --price 1.20"""
    from foretune.api.report import report as make_report

    made = make_report(runs, output, markdown=markdown, csv=csv, price=price, quality=quality, title=title)
    typer.echo(str(made))
    for path in (output, markdown, csv):
        if path is not None:
            typer.echo(f"Written: {path}")
