"""A watched folder in a terminal."""

from collections.abc import Iterator, Sequence

from foretune.analyse.watching.watcher import Failure, Watched
from foretune.core.input_files import shown
from foretune.reports.terminal.tables import as_text, right, table
from foretune.reports.watch_words import HEADINGS, counts_text, moment_text, money_and_time, run_cells, silent_text

MOST_RUNS = 20
"""Of those that run; the others are counted."""
_MOST_SILENT = 5
_MOST_NAMES = 5


def watch_lines(found: Watched) -> Iterator[str]:
    """Everything at a moment."""
    yield f"{shown(found.folder)}: {counts_text(found)}"
    more = "; ".join(money_and_time(found))
    if more:
        yield f"{more}."
    if found.running:
        yield ""
        yield from _running(found)
    for what, paths in (("Preparing", found.preparing), ("Waiting", found.waiting)):
        if paths:
            yield ""
            yield from _listed(what, paths)
    if found.silent:
        yield ""
        for run in found.silent[:_MOST_SILENT]:
            yield f"{silent_text(run, found.now_s)}: {shown(run.path)}"
        yield from _rest(len(found.silent) - _MOST_SILENT)
    for failure in found.failures:
        yield ""
        yield from _failure(failure)


def watch_line(found: Watched) -> str:
    """One line for a log."""
    return "; ".join([f"{moment_text(found.now_s)}  {counts_text(found)}", *money_and_time(found)])


def _running(found: Watched) -> Iterator[str]:
    made = table(*HEADINGS)
    right(made, *range(1, len(HEADINGS)))
    for run in found.running[:MOST_RUNS]:
        made.add_row(*run_cells(run))
    yield from as_text(lambda to: to.print(made)).splitlines()
    yield from _rest(len(found.running) - MOST_RUNS)


def _listed(what: str, paths: Sequence[str]) -> Iterator[str]:
    more = f", and {len(paths) - _MOST_NAMES:,} more" if len(paths) > _MOST_NAMES else ""
    yield f"{what}: {', '.join(map(shown, paths[:_MOST_NAMES]))}{more}"


def _rest(num: int) -> Iterator[str]:
    if num > 0:
        yield f"... and {num:,} more"


def _failure(failure: Failure) -> Iterator[str]:
    reason = f": {shown(failure.reason)}" if failure.reason else ""
    yield f"{shown(failure.status).capitalize()}: {shown(failure.path)}{reason}"
    for line in failure.log_lines:
        yield f"    {shown(line)}"
