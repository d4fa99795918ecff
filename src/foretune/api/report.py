"""`report`: the results of runs on one page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.run import RunLike, paths_of
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.core.output_files import write_file

if TYPE_CHECKING:
    from foretune.analyse.joined_view import JoinedView
    from foretune.analyse.run_report import RunReport
    from foretune.core.values import Finding

MOST_SELECTED = 5000
"""Runs of a page that are selected by conditions: a page of a thousand takes some eight seconds."""


@dataclass(frozen=True)
class Report:
    """What a set of runs says: recommendations, and the page, the Markdown and the table made of it."""

    found: "RunReport"
    study_findings: "tuple[Finding, ...]"
    joined: "tuple[JoinedView, ...]"
    """Of studies among the runs: quality at equal time beside speed at equal steps."""
    title: str | None

    @cached_property
    def html(self) -> str:
        """The page: one file, no scripts, nothing from elsewhere."""
        from foretune.reports.run_page import report_page

        return report_page(self.found, self.title, self.study_findings, self.joined)

    @cached_property
    def markdown(self) -> str:
        from foretune.reports.run_markdown import report_markdown

        return report_markdown(self.found, self.title, self.study_findings, self.joined)

    @cached_property
    def csv(self) -> str:
        """One row a run."""
        from foretune.reports.run_csv import runs_csv

        return runs_csv(self.found)

    def __str__(self) -> str:
        from foretune.reports.terminal.report import report_lines

        return "\n".join(report_lines(self.found))

    def _repr_html_(self) -> str:
        from foretune.reports.fragments import embedded

        return embedded(self.html, self.title or "Foretune report")


def report(
    runs: RunLike | Iterable[RunLike],
    output: str | Path | None = None,
    *,
    markdown: str | Path | None = None,
    csv: str | Path | None = None,
    price: float | None = None,
    quality: str | None = None,
    title: str | None = None,
    where: str | Sequence[str] = (),
    sort: str | None = None,
    top: int | None = None,
    observer: Observer | None = None,
) -> Report:
    """Puts the results of runs on one page.

    Args:
        runs: run directories, or folders of them, studies included.
        output: where to write the page; without it, nothing is written.
        markdown: where to write the same as Markdown.
        csv: where to write one row a run.
        price: US dollars for an hour of one device; without it, the catalogue's.
        quality: the metric that decides; without it, the first that all runs have.
        title: of the page.
        where: only runs for which these conditions hold, such as "status=finished"; see `runs`.
        sort: the column by which `top` chooses, best first.
        top: the first so many of these runs.
        observer: receives progress where many runs are read for the first time.
    """
    from foretune.analyse.joined_view import joined_views
    from foretune.analyse.run_data import gather
    from foretune.analyse.run_report import run_report
    from foretune.analyse.study_summary import stored_studies

    paths = paths_of(runs)
    if where or sort is not None or top is not None:
        paths = _selected(paths, where, sort, top, observer)
    place = Path.cwd() if output is None else Path(output).parent
    found = run_report(gather(paths), place, usd_per_hour=price, quality=quality)
    stored = stored_studies(paths)
    made = Report(found, stored.findings, tuple(joined_views(stored.studies)), title)
    if output is not None:
        write_file(Path(output), made.html)
    if markdown is not None:
        write_file(Path(markdown), made.markdown)
    if csv is not None:
        write_file(Path(csv), made.csv)
    return made


def _selected(
    paths: list[Path], where: str | Sequence[str], sort: str | None, top: int | None, observer: Observer | None
) -> list[Path]:
    from foretune.api.runs import runs as stored_runs

    stored = stored_runs(paths, where=where, sort=sort, top=top, columns=("kind",), observer=observer)
    # A trial that made no run has nothing to draw.
    found = [path for path, row in zip(stored.paths, stored.rows, strict=True) if row["kind"] != "trial"]
    if not found:
        raise UserError("No run is selected, so there is no page. Run the same without -o to see what there is.")
    if len(found) > MOST_SELECTED:
        raise UserError(
            f"A page of {len(found):,} runs is too much to read; at most {MOST_SELECTED:,} are put on one. "
            "Add conditions, or: foretune report runs --sort samples_per_s --top 100 -o report.html"
        )
    return found
