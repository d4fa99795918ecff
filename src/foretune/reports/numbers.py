"""Numbers on a page: each with the digits its interval allows, and a way back to the runs it was made of."""

from collections.abc import Sequence
from urllib.parse import quote

from foretune.analyse.groups import Configuration
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import MONEY, Measure
from foretune.analyse.run_report import Ref, RunReport
from foretune.core.units import last_digit, measured_text, measured_value_text
from foretune.reports.markup import Markup, tag
from foretune.stats.intervals import Estimate

NOTHING = tag("span", "–", class_="none")


def figure(report: RunReport, one: Configuration, measure: Measure, estimate: Estimate | None) -> Markup:
    """The mean of a configuration with its interval below, leading to its runs."""
    if estimate is None or estimate.value is None:
        return NOTHING
    runs = [run for run in one.finished if measure.of(run) is not None]
    text = measured_text(estimate.value, estimate.low, estimate.high, measure.unit)
    value, _, interval = text.partition(" (")
    shown = link(report, one, traced(report, value, measure.name, estimate.value, runs))
    if interval:
        return Markup(shown + tag("span", interval.removesuffix(")"), class_="interval"))
    return Markup(shown + tag("span", "one run", class_="interval"))


def traced(report: RunReport, text: str, name: str, value: float, runs: Sequence[RunData]) -> Markup:
    """A number that says what it is, what it was before rounding, and of which runs."""
    anchors = " ".join(report.refs[run.path].anchor for run in runs)
    return tag("data", text, value=repr(float(value)), data_of=name, data_runs=anchors)


def link(report: RunReport, one: Configuration, content: str) -> Markup:
    return tag("a", content, href=f"#{report.anchors[one.key]}")


def of_run(report: RunReport, run: RunData, measure: Measure, estimate: Estimate | None) -> Markup:
    """A single run's number, leading to the file it was read from; finer than two digits only as far as the interval
    of its configuration allows.
    """
    value = measure.of(run)
    if value is None:
        return NOTHING
    low = high = None
    if estimate is not None and estimate.low is not None and estimate.high is not None:
        reach = (estimate.high - estimate.low) / 2
        if last_digit(value, value - reach, value + reach) < last_digit(value, None, None):
            low, high = value - reach, value + reach
    text = measured_value_text(value, low, high, measure.unit)
    return file_link(report.refs[run.path], measure.file, traced(report, text, measure.name, value, [run]))


def file_link(ref: Ref, file: str, content: str) -> Markup:
    """To a file of the run directory, beside the report. A path is a path, whatever it is called: never a scheme."""
    return tag("a", content, href=f"./{quote(f'{ref.path}/{file}')}")


def heading_of(measure: Measure) -> str:
    """A column's name; what it counts stands below the table."""
    return "cost" if measure.name == MONEY else measure.name
