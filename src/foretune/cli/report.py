"""`foretune report`: what a set of runs says, on one page; or which of many runs are meant, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.options import refuse_given
from foretune.core.output_files import write_file

if TYPE_CHECKING:
    from foretune.api.runs import StoredGroups, StoredRuns

_PAGE = Path("report.html")
_STANDARD_OUTPUT = Path("-")


def report(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them, studies included.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page. Default: report.html; none where runs are only listed."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="The same as Markdown, in a file.")] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="One row a run, in a file; - prints the listed runs.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="The listed runs as JSON, in a file; - prints.")] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="US dollars for an hour of one device; else the catalogue's.")
    ] = None,
    quality: Annotated[
        str | None, typer.Option("--quality", help="The metric that decides; else the first that all runs have.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Of the page.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only runs with, for example, status=finished or 'train.batch_size>=4'; repeat."),
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", help="List by this column, best first; or COLUMN:asc, COLUMN:desc.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Only the first so many.")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="What to list: path,model,train.batch_size,samples_per_s, ...")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="List groups of runs: how they ended, figures.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", help="With --summary: the columns of a group, such as model,method.kind.")
    ] = None,
) -> None:
    """Report. Examples: foretune report runs -o report.html --price 1.20

    foretune report runs --where status=finished --sort samples_per_s --top 20

    foretune report runs --summary
    """
    is_grouped = summary or by is not None
    is_listed = is_grouped or bool(where or columns or json) or sort is not None or top is not None
    has_page = not is_listed or output is not None or markdown is not None
    if is_grouped:
        refuse_given(context, dict.fromkeys(("sort", "top", "columns"), "is for a list of runs: leave out --summary."))
    if not has_page:
        refuse_given(context, dict.fromkeys(("price", "quality", "title"), "is for a page. Add: -o report.html"))
    if is_listed:
        _list(runs, Listing(tuple(where or ()), sort, top, _names(columns), _names(by)), csv, json, grouped=is_grouped)
    if has_page:
        page = output if is_listed else output or _PAGE
        table = None if is_listed else csv
        _write_page(runs, page, markdown, table, price, quality, title, where or (), sort, top)


@dataclass(frozen=True)
class Listing:
    """Which runs are listed, and how."""

    where: tuple[str, ...]
    sort: str | None
    top: int | None
    columns: list[str] | None
    by: list[str] | None


def _list(runs: list[Path], listing: Listing, csv: Path | None, json: Path | None, *, grouped: bool) -> None:
    from foretune.api.runs import runs as stored_runs
    from foretune.api.runs import summarise_runs
    from foretune.cli.progress import ProgressObserver

    found: StoredGroups | StoredRuns
    with ProgressObserver() as observer:
        if grouped:
            found = summarise_runs(runs, where=listing.where, by=listing.by, observer=observer)
        else:
            found = stored_runs(
                runs, where=listing.where, sort=listing.sort, top=listing.top, columns=listing.columns,
                observer=observer,
            )  # fmt: skip
    files = [(path, content) for path, content in ((csv, "csv"), (json, "json")) if path is not None]
    if _STANDARD_OUTPUT not in (csv, json):
        typer.echo(str(found))
    for path, content in files:
        if path == _STANDARD_OUTPUT:
            typer.echo(getattr(found, content), nl=False)
        else:
            write_file(path, getattr(found, content))
            typer.echo(f"Written: {path}", err=_STANDARD_OUTPUT in (csv, json))


def _write_page(
    runs: list[Path],
    page: Path | None,
    markdown: Path | None,
    csv: Path | None,
    price: float | None,
    quality: str | None,
    title: str | None,
    where: Sequence[str],
    sort: str | None,
    top: int | None,
) -> None:
    from foretune.api.report import report as make_report
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        made = make_report(
            runs, page, markdown=markdown, csv=csv, price=price, quality=quality, title=title, where=where, sort=sort,
            top=top, observer=observer,
        )  # fmt: skip
    typer.echo(str(made))
    for path in (page, markdown, csv):
        if path is not None:
            typer.echo(f"Written: {path}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else text.split(",")
