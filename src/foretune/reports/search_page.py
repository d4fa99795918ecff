"""The page of a search: the recommendation, the plot of time against money, and what it was chosen from."""

from typing import TYPE_CHECKING

from foretune import __version__
from foretune.core.units import duration_text, memory_text, usd_text
from foretune.reports.markup import Markup, join, tag
from foretune.reports.page import document, scrolled
from foretune.reports.remedy_words import settings_text
from foretune.reports.search_figure import NARROW, WIDE, SearchChart, chart_of_search, draw_search, num_outside
from foretune.reports.search_words import answer_title, device_text, effort_lines, outcome_text, question_line, why_text
from foretune.reports.terminal.plan_times import job_text, step_text
from foretune.reports.terminal.several_devices import run_or_runs_text, spot_lines

if TYPE_CHECKING:
    from foretune.config.reading import Asked
    from foretune.planner.search.searching import Answer, Choice


def search_page(asked: "Asked", answer: "Answer") -> str:
    """The whole HTML document."""
    chart = chart_of_search(answer)
    best = answer.best
    header = tag(
        "header",
        tag("p", "Foretune", class_="brand"),
        tag("h1", f"{answer_title(answer)}: ", tag("span", device_text(best)), f", {outcome_text(best)}"),
        tag("p", question_line(asked, answer), class_="lead"),
    )
    main = tag(
        "main",
        header,
        tag(
            "section",
            tag("ul", (tag("li", line) for line in _answer_lines(answer)), class_="answer"),
            _settings(best),
            _figure(chart),
            _table(answer, chart),
            _small_print(answer),
        ),
    )
    title = f"{answer_title(answer)} for {asked.experiment.model}"
    foot = tag("footer", f"Foretune {__version__}. A forecast: nothing on this page was measured on these devices.")
    return document(title, main, foot, style="search_page.css")


def _answer_lines(answer: "Answer") -> list[str]:
    plan = answer.best.plan
    lines = [why_text(answer)]
    if plan.time is not None:
        lines.append(step_text(plan.time))
    if plan.cost is not None:
        lines += [job_text(plan.cost), *spot_lines(plan.cost)]
    return lines if answer.run_or_runs is None else [*lines, run_or_runs_text(answer.run_or_runs)]


def _settings(choice: "Choice") -> Markup:
    return tag("p", "Settings: ", tag("code", settings_text(choice.words) or "as they are"), class_="chosen")


def _figure(chart: SearchChart) -> Markup:
    if not chart.is_drawable:
        return tag("p", "No plot: the recommended device has no price. Add --price DEVICE=USD.", class_="small")
    legend = [tag("li", tag("span", class_=f"swatch d{n}"), device) for device, n in chart.colours.items()]
    legend.append(tag("li", tag("span", class_="swatch other"), "other devices"))
    return tag(
        "figure",
        draw_search(chart, WIDE, "search"),
        draw_search(chart, NARROW, "search"),
        tag("ul", legend, class_="legend"),
        tag("figcaption", _caption(chart)),
    )


def _caption(chart: SearchChart) -> str:
    answer, outside = chart.answer, num_outside(chart)
    beyond = f" {outside:,} more are beyond the edges." if outside else ""
    return (
        f"Small dots: {len(answer.cloud) - outside:,} of {answer.num_options:,} configurations, those whose estimated "
        f"memory fits.{beyond} Line: the lowest price at which a job ends within a time. Thick bars: the error of the "
        "step time, which changes time and price by the same factor. Shaded: beyond a limit. Both axes are logarithmic."
    )


def _table(answer: "Answer", chart: SearchChart) -> Markup:
    names = (("Device", None), ("Whole job", "number"), ("Price", "number"), ("Step", "number"),
             ("Estimated memory", "number"), ("Settings", None))  # fmt: skip
    head = tag("tr", (tag("th", name, scope="col", class_=class_) for name, class_ in names))
    rows = [_row(answer, choice, chart) for choice in chart.named or (answer.best,)]
    body = tag("table", tag("thead", head), tag("tbody", rows), class_="stacks")
    return join(tag("h3", "Recommended, runner-up, and faster for more money"), scrolled(body, "Choices"))


def _row(answer: "Answer", choice: "Choice", chart: SearchChart) -> Markup:
    colour = chart.colours.get(choice.plan.device)
    swatch = tag("span", class_=f"swatch d{colour}") if colour is not None else Markup("")
    role = " (recommended)" if choice is answer.best else " (runner-up)" if choice is answer.runner_up else ""
    time = choice.plan.time
    return tag(
        "tr",
        tag("th", swatch, f"{device_text(choice)}{role}", scope="row"),
        tag("td", duration_text(choice.total_s), class_="number", data_label="Whole job"),
        tag("td", "no price" if choice.usd is None else usd_text(choice.usd), class_="number", data_label="Price"),
        tag("td", "" if time is None else duration_text(time.step_s), class_="number", data_label="Step"),
        tag("td", memory_text(choice.plan.process_bytes), class_="number", data_label="Estimated memory"),
        tag("td", tag("code", settings_text(choice.words) or "as they are"), class_="settings"),
    )


def _small_print(answer: "Answer") -> Markup:
    plan = answer.best.plan
    assumed = (*plan.connection, *plan.assumptions, *(plan.cost.assumptions if plan.cost else ()))
    lists = (("Assumed", assumed), ("Searched", tuple(effort_lines(answer))), ("Not counted", plan.notes))
    return tag(
        "div",
        (tag("div", tag("h3", name), tag("ul", (tag("li", t) for t in texts))) for name, texts in lists if texts),
        class_="fine",
    )
