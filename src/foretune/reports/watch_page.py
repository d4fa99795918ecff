"""A watched folder as a page that loads itself again: no scripts, nothing that listens."""

from foretune.analyse.watching.watcher import Failure, Watched
from foretune.core.input_files import shown
from foretune.reports.markup import Markup, join, tag
from foretune.reports.page import document, scrolled
from foretune.reports.watch_words import HEADINGS, counts_text, moment_text, money_and_time, run_cells, silent_text

MOST_RUNS = 200
"""Of a kind that are listed; the others are counted."""


def watch_page(found: Watched, every_s: float | None) -> str:
    """The page at a moment. `every_s`: how often it loads itself again; None: it is not written again."""
    name = shown(found.folder.resolve().name)
    if every_s is None:
        note = f"As of {moment_text(found.now_s)}. This page is not written again."
    else:
        note = (
            f"As of {moment_text(found.now_s)}; loads itself again every {every_s:g} s. "
            "If this time stays behind the clock, foretune watch has ended."
        )
    answers = [counts_text(found), *money_and_time(found)]
    return document(
        f"{name}: {len(found.running)} running",
        tag(
            "main",
            tag(
                "header",
                tag("p", "Foretune watch", class_="brand"),
                tag("h1", name),
                tag("ul", [tag("li", text) for text in answers], class_="answer"),
                tag("p", note, class_="small"),
            ),
            _running(found),
            _silent(found),
            _paths("Preparing", found.preparing),
            _paths("Waiting", found.waiting),
            _failures(found),
        ),
        style="watch_page.css",
        refresh_s=every_s,
    )


def _running(found: Watched) -> Markup:
    if not found.running:
        return Markup("")
    head = tag("thead", tag("tr", tag("th", HEADINGS[0]), [tag("th", text, class_="number") for text in HEADINGS[1:]]))
    rows = []
    for run in found.running[:MOST_RUNS]:
        name, *cells = run_cells(run)
        labelled = [
            tag("td", text, class_="number", data_label=label) for label, text in zip(_LABELS, cells, strict=True)
        ]
        rows.append(tag("tr", tag("th", name, _bar(run.steps_done, run.num_steps), scope="row"), labelled))
    table = tag("table", head, tag("tbody", rows), class_="stacks")
    return tag("section", tag("h2", "Running"), scrolled(table, "Running"), _rest(len(found.running)))


_LABELS = ("step", "samples/s", "planned samples/s", "loss", "memory", "planned memory", "elapsed", "left", "spent")


def _bar(done: int | None, total: int | None) -> Markup:
    if done is None or not total:
        return Markup("")
    return tag("progress", value=min(done, total), max=total, aria_label="steps done")


def _silent(found: Watched) -> Markup:
    if not found.silent:
        return Markup("")
    items = [
        tag("li", tag("strong", shown(run.path)), ": ", silent_text(run, found.now_s))
        for run in found.silent[:MOST_RUNS]
    ]
    return tag("section", tag("h2", "No sign of life"), tag("ul", items, class_="runs"), _rest(len(found.silent)))


def _paths(title: str, paths: tuple[str, ...]) -> Markup:
    if not paths:
        return Markup("")
    items = [tag("li", shown(path)) for path in paths[:MOST_RUNS]]
    return tag("section", tag("h2", title), tag("ul", items, class_="runs"), _rest(len(paths)))


def _failures(found: Watched) -> Markup:
    if not found.failures:
        return Markup("")
    parts = [_failure(failure) for failure in found.failures]
    return tag("section", tag("h2", "Did not finish"), tag("p", "The newest first.", class_="small"), parts)


def _failure(failure: Failure) -> Markup:
    reason = f"{failure.status}: {shown(failure.reason)}" if failure.reason else failure.status
    log = tag("pre", "\n".join(map(shown, failure.log_lines)), tabindex="0") if failure.log_lines else Markup("")
    return join(tag("h3", shown(failure.path)), tag("p", reason), log)


def _rest(num: int) -> Markup:
    return tag("p", f"... and {num - MOST_RUNS:,} more", class_="small") if num > MOST_RUNS else Markup("")
