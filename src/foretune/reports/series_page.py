"""The page of a series: the question, its answers in sentences, and every figure with its numbers."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from foretune import __version__
from foretune.reports.markup import Markup, tag
from foretune.reports.page import document, scrolled
from foretune.reports.run_markdown import escaped, markdown_table
from foretune.reports.series_figures import DrawnFigure


@dataclass(frozen=True, kw_only=True)
class PartAnswer:
    """What one study of the series found."""

    name: str
    title: str
    held_equal: str
    sentences: tuple[str, ...]
    authors_found: str | None
    figures: tuple[DrawnFigure, ...]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    """Runs that failed."""
    forecast_settings: str = ""
    """What is forecast beside the measurement, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class SeriesAnswer:
    """Everything that the page shows."""

    name: str
    question: str
    machine: str
    """Where it was measured."""
    conclusion: tuple[str, ...]
    """The answer over all parts, in up to three sentences."""
    joined: DrawnFigure | None
    """Quality at equal time beside speed at equal steps, where parts measured both."""
    parts: tuple[PartAnswer, ...]
    command: str
    """Which made it."""


def series_page(answer: SeriesAnswer) -> str:
    """The whole HTML document, with its pictures in it."""
    header = tag(
        "header",
        tag("p", "Foretune", class_="brand"),
        tag("h1", answer.question),
        tag("p", f"Measured on {answer.machine}. ", tag("code", answer.command), class_="lead"),
    )
    summary = tag(
        "section",
        tag("h2", "Answer"),
        [tag("p", sentence, class_="answer-text") for sentence in answer.conclusion],
        tag("ul", (_answered(part) for part in answer.parts), class_="answer"),
    )
    joined = [] if answer.joined is None else tag("section", tag("h2", answer.joined.title), _figure(answer.joined))
    main = tag("main", header, summary, joined, [_part(part) for part in answer.parts])
    foot = tag("footer", f"Foretune {__version__}. Forecasts are for the hardware they name, which was not used here.")
    return document(answer.question, main, foot, style="series_page.css", has_pictures=True)


def _answered(part: PartAnswer) -> Markup:
    return tag("li", tag("strong", f"{part.title} "), " ".join(part.sentences) or "No run of it has finished.")


def _part(part: PartAnswer) -> Markup:
    notes = [*(f"Failed: {text}" for text in part.problems), *(f"Warning: {text}" for text in part.warnings)]
    return tag(
        "section",
        tag("h2", part.title),
        tag("p", " ".join(filter(None, (part.held_equal, part.forecast_settings))), class_="lead"),
        tag("ul", (tag("li", sentence) for sentence in part.sentences)),
        [] if part.authors_found is None else tag("p", tag("strong", "The authors found: "), part.authors_found),
        [_figure(figure) for figure in part.figures],
        tag("ul", (tag("li", note) for note in notes), class_="small") if notes else [],
        id=part.name,
    )


def _figure(figure: DrawnFigure) -> Markup:
    picture = base64.b64encode(figure.files[0].read_bytes()).decode("ascii")
    words = figure.table.num_text_rows
    made = tag(
        "table",
        tag("thead", _row(figure, figure.table.head, "th")),
        tag("tbody", (_row(figure, row, "td", has_words=place < words) for place, row in enumerate(figure.table.rows))),
    )
    names = ", ".join(f"figures/{file.name}" for file in figure.files)
    return tag(
        "figure",
        tag("img", src=f"data:image/svg+xml;base64,{picture}", alt=figure.title),
        scrolled(made, figure.title),
        tag("figcaption", f"In brackets the 95 % interval over seeds, or the band of a forecast. Files: {names}"),
    )


def _row(figure: DrawnFigure, row: Sequence[str], name: str, *, has_words: bool = False) -> Markup:
    return tag(
        "tr", (tag(name, cell, class_=None if has_words else _class(figure, place)) for place, cell in enumerate(row))
    )


def _class(figure: DrawnFigure, place: int) -> str | None:
    """Columns of numbers are aligned at their right."""
    cells = [row[place] for row in figure.table.rows[figure.table.num_text_rows :]]
    return "number" if cells and all(cell[:1].isdigit() or cell in ("–", "-") for cell in cells) else None


def series_markdown(answer: SeriesAnswer) -> str:
    """The same as text, with links to the figures."""
    lines = [f"# {escaped(answer.question)}", "", f"Measured on {escaped(answer.machine)}: `{answer.command}`", ""]
    for sentence in answer.conclusion:
        lines += [f"**{escaped(sentence)}**", ""]
    lines += [f"- **{escaped(part.title)}** {escaped(' '.join(part.sentences))}" for part in answer.parts]
    if answer.joined is not None:
        lines += ["", f"## {escaped(answer.joined.title)}", "", *_markdown_figure(answer.joined)]
    for part in answer.parts:
        settings = " ".join(filter(None, (part.held_equal, part.forecast_settings)))
        lines += ["", f"## {escaped(part.title)}", "", escaped(settings), ""]
        if part.authors_found is not None:
            lines += [f"The authors found: {escaped(part.authors_found)}", ""]
        for figure in part.figures:
            lines += _markdown_figure(figure)
        lines += [f"- Failed: {escaped(text)}" for text in part.problems]
        lines += [f"- Warning: {escaped(text)}" for text in part.warnings]
    return "\n".join(lines) + "\n"


def _markdown_figure(figure: DrawnFigure) -> list[str]:
    table = markdown_table([figure.table.head, *figure.table.rows])
    return [f"![{escaped(figure.title)}](figures/{figure.name}.png)", "", *table, ""]
