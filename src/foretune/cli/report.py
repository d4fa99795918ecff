"""`foretune report`: what a set of runs says, on one page."""

from pathlib import Path
from typing import Annotated

import typer

_MOST_LINES = 8


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
    from foretune.analyse.run_report import gather, run_report
    from foretune.analyse.study_findings import study_findings
    from foretune.cli.files import write_file
    from foretune.reports.run_csv import runs_csv
    from foretune.reports.run_markdown import report_markdown
    from foretune.reports.run_page import report_page

    found = run_report(gather(runs), output.parent, usd_per_hour=price, quality=quality)
    findings = study_findings(runs)
    write_file(output, report_page(found, title, findings))
    if markdown is not None:
        write_file(markdown, report_markdown(found, title, findings))
    if csv is not None:
        write_file(csv, runs_csv(found))
    for task in found.tasks:
        finding = task.recommendation.finding
        typer.echo(finding.sentence if len(found.tasks) == 1 else f"{task.model}: {finding.sentence}")
        if finding.caveat:
            typer.echo(f"! {finding.caveat}")
        for one in (*task.against_base[:_MOST_LINES], *task.missing[:_MOST_LINES]):
            typer.echo(one.sentence)
    if found.failed:
        typer.echo(f"! {len(found.failed)} of {len(found.runs)} runs did not finish")
    for path in (output, markdown, csv):
        if path is not None:
            typer.echo(f"Written: {path}")
