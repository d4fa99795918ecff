"""The report of a set of runs on one page: no scripts, nothing from elsewhere, the same bytes for the same runs."""

from collections.abc import Mapping, Sequence

from foretune import __version__
from foretune.analyse.groups import environments_apart
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import HELD_OUT_LOSS, TIME
from foretune.analyse.run_report import RunReport, Task
from foretune.core.values import Finding
from foretune.report.markup import Content, Markup, join, tag
from foretune.report.page import document, swatch
from foretune.report.pictures import PictureBudget
from foretune.report.run_figures import (
    MOST_CURVES,
    front_panels,
    letters,
    loss_panels,
    phase_bars,
    phase_colours,
    phase_names,
    phases_of,
)
from foretune.report.run_looks import diagnoses, picture_section
from foretune.report.run_question import asked_table, count_text, seeds_text, task_title
from foretune.report.run_tables import (
    configuration_table,
    environment_table,
    failure_table,
    forecast_table,
    phase_table,
    quality_table,
    run_table,
)

_MOST_BARS = 24
_MOST_FINDINGS = 12


def report_page(report: RunReport, title: str | None = None, findings: Sequence[Finding] = ()) -> str:
    """The whole HTML document. `findings` are those of studies that the runs belong to."""
    named = title or _title(report)
    names = letters(report.configurations)
    budget = PictureBudget()
    sections = [
        _asked(report),
        _recommendation(report, findings),
        _configurations(report, names),
        _front(report, names),
        _forecast(report),
        _losses(report, names),
        _phases(report, names),
        _profiles(report),
        picture_section(report, budget),
        _quality(report),
        _environment(report),
        _failures(report),
        _runs(report),
    ]
    head = tag("header", tag("p", "Foretune", class_="brand"), tag("h1", named))
    body = tag("main", head, (join(section, "\n") for section in sections if section is not None))
    return document(named, body, _foot(), style="run_page.css", has_pictures=True)


def _title(report: RunReport) -> str:
    models = list(dict.fromkeys(task.model for task in report.tasks))
    runs = "1 run" if len(report.runs) == 1 else f"{len(report.runs):,} runs"
    return f"{runs} of {models[0]}" if len(models) == 1 else f"{runs} of {len(models)} models"


def _section(key: str, title: str, *contents: Content) -> Markup:
    return tag("section", tag("h2", title, id=f"{key}-title"), *contents, id=key, aria_labelledby=f"{key}-title")


def _asked(report: RunReport) -> Markup:
    lead = f"{count_text(report)}, {seeds_text(report)}. Which is better, at which time, memory and price?"
    return _section("asked", "What was asked", tag("p", lead, class_="lead"), asked_table(report))


def _recommendation(report: RunReport, findings: Sequence[Finding]) -> Markup:
    parts: list[Content] = []
    for task in report.tasks:
        finding = task.recommendation.finding
        if len(report.tasks) > 1:
            parts.append(tag("h3", task_title(task)))
        parts.append(tag("p", finding.sentence, class_="answer-text"))
        if finding.caveat:
            parts.append(tag("p", finding.caveat, class_="small"))
        if task.against_base:
            parts.append(tag("ul", (_finding(one) for one in task.against_base[:_MOST_FINDINGS]), class_="findings"))
        if task.missing:
            parts.append(tag("p", "What more runs would show:"))
            parts.append(tag("ul", (_finding(one) for one in task.missing[:_MOST_FINDINGS]), class_="findings"))
            left_out = len(task.missing) - _MOST_FINDINGS
            if left_out > 0:
                parts.append(tag("p", f"So it is for {left_out} more with fewer than three runs.", class_="small"))
    if findings:
        parts.append(tag("h3", "What the study found"))
        parts.append(tag("ul", (_finding(one) for one in findings[:_MOST_FINDINGS]), class_="findings"))
    how = (
        "Quality counts first, then time, memory and money. A best is named only where it is shown to be better than "
        "every other one, with all of these comparisons allowed for: among configurations that are alike, one is named "
        "in at most 5 of 100 reports. Intervals are at 95 %; those of leads are wider for that."
    )
    parts.append(tag("p", how, class_="small"))
    return _section("recommendation", "Recommendation", *parts)


def _finding(one: Finding) -> Markup:
    caveat = tag("span", f" {one.caveat}", class_="small") if one.caveat else ""
    return tag("li", one.sentence, caveat)


def _configurations(report: RunReport, names: Mapping[str, str]) -> Markup:
    parts: list[Content] = []
    for task in report.tasks:
        if len(report.tasks) > 1:
            parts.append(tag("h3", task_title(task)))
        parts.append(configuration_table(report, task, names))
        unlike = environments_apart(task.configurations)
        if unlike:
            parts.append(tag("p", f"Made in unlike environments, which are never mixed: {unlike}.", class_="small"))
    parts.append(tag("p", _what_is_counted(report), class_="small"))
    return _section("configurations", "Configurations", *parts)


def _what_is_counted(report: RunReport) -> str:
    quality = next((m.name for task in report.tasks for m in task.measures if task.has_quality), None)
    counted = (
        "Means over the runs of a configuration, with the 95 % interval of the mean below; one run has none, and two "
        "digits. Time: from the first step to the end, validation and saving included, loading and encoding not. "
        "Peak memory: tensors of the device, or the whole process where there is none."
    )
    words = [counted]
    if quality == HELD_OUT_LOSS:
        words.append("Quality: the held-out loss after the last step, at fixed noise; less is better.")
    if report.prices:
        words.append(f"Cost: time at {'; '.join(report.prices)}.")
    else:
        words.append("Cost: no price is known for these devices; --price gives one.")
    return " ".join(words)


def _front(report: RunReport, names: Mapping[str, str]) -> Markup | None:
    parts: list[Content] = []
    for number, task in enumerate(report.tasks, start=1):
        if len(task.configurations) < 2:  # noqa: PLR2004
            continue
        panels = front_panels(task, names, f"task-{number}")
        if panels:
            if len(report.tasks) > 1:
                parts.append(tag("h3", task_title(task)))
            parts.append(tag("figure", tag("div", panels, class_="panels"), tag("figcaption", _front_words(task))))
    return _section("front", "Pareto front", *parts) if parts else None


def _front_words(task: Task) -> str:
    names = [measure.name for measure in task.axes]
    on = [one.configuration.label for one in task.placed if one.standing == "on the front"]
    shown = "; ".join(on[:_MOST_FINDINGS]) + (
        f" and {len(on) - _MOST_FINDINGS} more" if len(on) > _MOST_FINDINGS else ""
    )
    maybe = sum(one.standing == "maybe" for one in task.placed)
    more = f" For {maybe} more that is open: others are better on average, but nothing of it is shown." if maybe else ""
    equal = "" if TIME in names else " All were given the same time, which is therefore none of them."
    return (
        f"Filled points are on the Pareto front of {', '.join(names)} together: nothing else is at least as good in "
        f"all of them.{equal} These are: {shown}.{more} In each panel the line joins what is best in its two measures "
        "alone; whiskers are 95 % intervals. Letters are those of the table above."
    )


def _forecast(report: RunReport) -> Markup | None:
    found = forecast_table(report, report.configurations)
    if found is None:
        return None
    words = "Peak memory as planned before the first step, beside what was measured; means over the runs."
    return _section("forecast", "Forecast against measurement", tag("p", words, class_="lead"), found)


def _losses(report: RunReport, names: Mapping[str, str]) -> Markup | None:
    parts: list[Content] = []
    for number, task in enumerate(report.tasks, start=1):
        panels = loss_panels(task.configurations, names, f"task-{number}")
        if not panels:
            continue
        drawn = [one for one in task.configurations if one.finished][:MOST_CURVES]
        legend = (
            tag("li", swatch(f"b{i % MOST_CURVES}"), f"{names[one.key]}: {one.label}") for i, one in enumerate(drawn)
        )
        num_finished = sum(bool(one.finished) for one in task.configurations)
        words = "Means over runs; bands are the 95 % interval of the mean over seeds."
        if num_finished > len(drawn):
            words += f" Of {num_finished} configurations the first {len(drawn)} are drawn."
        if len(report.tasks) > 1:
            parts.append(tag("h3", task_title(task)))
        figure = tag("div", panels, class_="panels")
        parts.append(tag("figure", figure, tag("ul", legend, class_="legend"), tag("figcaption", words)))
    return _section("losses", "Losses", *parts) if parts else None


def _phases(report: RunReport, names: Mapping[str, str]) -> Markup | None:
    timed = [one for one in report.configurations if phases_of(one.finished)]
    shown = timed[:_MOST_BARS]
    bars = phase_bars(shown, names, "phases")
    if bars is None:
        return None
    colours = phase_colours(phase_names(shown))
    legend = (tag("li", swatch(colour), name) for name, colour in colours.items())
    words = "Seconds of a run by phase, means over runs; they add up to its time."
    if len(timed) > len(shown):
        words += f" Of {len(timed)} configurations the first {len(shown)} are drawn."
    figure = tag("figure", bars, tag("ul", legend, class_="legend"), tag("figcaption", words))
    return _section("phases", "Where the time goes", figure, phase_table(report, shown, names))


def _profiles(report: RunReport) -> Markup | None:
    found, left_out = diagnoses(report)
    if not found:
        return None
    parts: list[Content] = [tag("ul", found, class_="findings")]
    if left_out:
        parts.append(
            tag("p", f"{left_out} more profiles are not read here; `foretune profile RUN` does.", class_="small")
        )
    return _section("profiles", "What held runs back", *parts)


def _quality(report: RunReport) -> Markup | None:
    found = quality_table(report, report.configurations)
    if found is None:
        return None
    words = (
        "Each run's images beside those of the model it started from, on the same prompts and seeds; means over runs."
    )
    return _section("quality", "Quality, before and after", tag("p", words, class_="lead"), found)


def _environment(report: RunReport) -> Markup:
    return _section("environment", "Environment", environment_table(report))


def _failures(report: RunReport) -> Markup | None:
    if not report.failed:
        return None
    return _section("failures", "Runs that did not finish", failure_table(report))


def _runs(report: RunReport) -> Markup:
    words = (
        "Every number above leads here, and from here to the file it was read from: events.jsonl has each step as it "
        "was measured. Paths are relative to this page."
    )
    warned = [(run, text) for run in report.runs if run.record is not None for text in run.record.warnings]
    parts: list[Content] = [tag("p", words, class_="lead"), run_table(report)]
    if warned:
        parts.append(tag("h3", "What runs warned of"))
        parts.append(tag("ul", (_warning(report, *one) for one in warned[:_MOST_FINDINGS]), class_="findings"))
    if len(warned) > _MOST_FINDINGS:
        parts.append(tag("p", f"{len(warned) - _MOST_FINDINGS} more are in the records of the runs.", class_="small"))
    return _section("runs", "Runs", *parts)


def _warning(report: RunReport, run: RunData, text: str) -> Markup:
    ref = report.refs[run.path]
    return tag("li", tag("a", ref.name, href=f"#{ref.anchor}"), ": ", text)


def _foot() -> Markup:
    return tag("footer", f"Foretune {__version__}. Made of the run directories alone; nothing was fetched.")
