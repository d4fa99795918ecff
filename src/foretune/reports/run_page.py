"""The report of a set of runs on one page: no scripts, nothing from elsewhere, the same bytes for the same runs."""

from collections.abc import Sequence

from foretune import __version__
from foretune.analyse.groups import environments_apart
from foretune.analyse.joined_view import JoinedView
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import CONFIDENCE, HELD_OUT_LOSS, TIME
from foretune.analyse.run_report import RunReport, RunTask
from foretune.core.units import share_text
from foretune.core.values import Finding
from foretune.reports.data_tables import Rows, TableCell, TableColumn, TableRow, data_table, numeric
from foretune.reports.markup import Content, Markup, join, tag
from foretune.reports.page import document, swatch
from foretune.reports.pictures import PictureBudget
from foretune.reports.run_figures import (
    MOST_CURVES,
    front_panels,
    loss_panels,
    phase_bars,
    phase_colours,
    phase_names,
    phases_of,
)
from foretune.reports.run_looks import diagnoses, left_out_words, sample_section
from foretune.reports.run_question import count_text, difference_table, seeds_text, shared_list, task_title
from foretune.reports.run_tables import (
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


def report_page(
    report: RunReport,
    title: str | None = None,
    findings: Sequence[Finding] = (),
    joined: Sequence[JoinedView] = (),
) -> str:
    """The whole HTML document. `findings` and `joined` are those of studies that the runs belong to."""
    named = title or _title(report)
    budget = PictureBudget()
    top = (
        [_before_and_after(report, findings, budget), _configurations(report)]
        if len(report.configurations) == 1
        else [
            _result(report, findings),
            _configurations(report),
            _samples(report, budget),
            _quality(report),
            _certainty(report),
        ]
    )
    sections = [
        *top[:1],
        _joined(joined),
        *top[1:],
        _setup(report),
        _front(report),
        _forecast(report),
        _losses(report),
        _phases(report),
        _profiles(report),
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


def _before_and_after(report: RunReport, findings: Sequence[Finding], budget: PictureBudget) -> Markup:
    """The top of a page about one configuration: its samples, and what training changed."""
    (task,) = report.tasks
    parts: list[Content] = [*_verdict(task)]
    parts += sample_section(report, task, budget)
    scores = quality_table(report, report.configurations)
    if scores is not None:
        words = f"Scores on the same prompts and seeds before and after training{_change_confidence(report)}."
        parts += [tag("h3", "What changed"), tag("p", words, class_="lead"), scores]
    parts += _study_findings(findings)
    left_out = left_out_words(budget)
    parts += [] if left_out is None else [left_out]
    parts += _more_runs(task)
    return _section("result", "Before and after", *parts)


def _change_confidence(report: RunReport) -> str:
    """Of several runs the interval is that of their mean; of one it is as its evaluation decided."""
    runs = [run for one in report.configurations for run in one.finished if run.path in report.evaluations]
    if len(runs) > 1:
        return f"; the interval of a change is at {share_text(CONFIDENCE)}"
    found = {difference.confidence for run in runs for difference in report.evaluations[run.path].differences}
    if len(found) != 1:
        return ""
    return f"; the interval of a change is at {share_text(found.pop())}, which allows for the number of metrics"


def _result(report: RunReport, findings: Sequence[Finding]) -> Markup:
    parts: list[Content] = []
    for task in report.tasks:
        if len(report.tasks) > 1:
            parts.append(tag("h3", task_title(task)))
        parts += _verdict(task)
        if task.against_base:
            parts.append(tag("ul", (_finding(one) for one in task.against_base), class_="findings"))
    split = list(dict.fromkeys(t.group.length for t in report.tasks if t.group.is_split_by_length and t.group.length))
    if split:
        words = f"Trainings of different lengths are not ranked against each other: {', '.join(split)}."
        parts.append(tag("p", words, class_="small"))
    if len({task.group.kind for task in report.tasks}) > 1:
        parts.append(tag("p", "Benchmarks and trainings are not ranked against each other.", class_="small"))
    parts += _study_findings(findings)
    return _section("result", "Result", *parts)


def _verdict(task: RunTask) -> list[Markup]:
    made = task.recommendation
    parts = [tag("p", f"{made.headline}.", class_="answer-text")]
    if made.detail:
        parts.append(tag("p", made.detail, class_="answer-detail"))
    if made.finding.caveat:
        parts.append(tag("p", made.finding.caveat, class_="small"))
    return parts


def _certainty(report: RunReport) -> Markup:
    parts: list[Content] = []
    how = (
        "Quality counts first, then time, memory and cost. A winner is named only where it is shown to be better than "
        "every other configuration, corrected for the number of comparisons: among equal configurations, at most 5 of "
        "100 reports name one. Intervals are at 95 %, or higher where corrected for several comparisons."
    )
    parts.append(tag("p", how, class_="lead"))
    for task in report.tasks:
        found = _more_runs(task)
        if found:
            parts += [tag("h3", task_title(task))] if len(report.tasks) > 1 else []
            parts += found
    return _section("certainty", "How certain is this?", *parts)


def _more_runs(task: RunTask) -> list[Markup]:
    if not task.missing:
        return []
    parts = [
        tag("p", "What more runs would show:"),
        tag("ul", (_finding(one) for one in task.missing[:_MOST_FINDINGS]), class_="findings"),
    ]
    left_out = len(task.missing) - _MOST_FINDINGS
    if left_out > 0:
        parts.append(tag("p", f"The same holds for {left_out} more with fewer than three runs.", class_="small"))
    return parts


def _study_findings(findings: Sequence[Finding]) -> list[Markup]:
    if not findings:
        return []
    listed = tag("ul", (_finding(one) for one in findings), class_="findings")
    return [tag("h3", "Findings of the study"), listed]


def _joined(views: Sequence[JoinedView]) -> Markup | None:
    if not views:
        return None
    parts: list[Content] = []
    for view in views:
        head, *rows = view.table()
        columns = [TableColumn(head[0]), *map(numeric, head[1:])]
        parts += [tag("h3", view.title)] if len(views) > 1 else []
        # The names of machines are words above numbers.
        machines: list[str | TableCell] = [rows[0][0], *(TableCell(name, class_="words") for name in rows[0][1:])]
        parts.append(data_table(view.title, columns, [Rows([TableRow(machines), *map(TableRow, rows[1:])])]))
    title = views[0].title if len(views) == 1 else "Configurations of the studies"
    words = "Means over seeds; in brackets the 95 % interval of the mean, from three seeds on."
    return _section("joined", title, tag("p", words, class_="lead"), *parts)


def _finding(one: Finding) -> Markup:
    caveat = tag("span", f" {one.caveat}", class_="small") if one.caveat else ""
    return tag("li", one.sentence, caveat)


def _setup(report: RunReport) -> Markup:
    lead = f"{count_text(report)}, {seeds_text(report)}."
    parts: list[Content] = [tag("p", lead, class_="lead"), shared_list(report)]
    apart = difference_table(report)
    if apart is not None:
        parts += [tag("h3", "Settings that differ"), apart]
    return _section("setup", "Setup", *parts)


def _configurations(report: RunReport) -> Markup:
    parts: list[Content] = []
    for task in report.tasks:
        if len(report.tasks) > 1:
            parts.append(tag("h3", task_title(task)))
        parts.append(configuration_table(report, task))
        unlike = environments_apart(task.configurations)
        if unlike:
            words = f"Runs from different environments are never averaged together: {unlike}."
            parts.append(tag("p", words, class_="small"))
    parts.append(tag("p", _what_is_counted(report), class_="small"))
    return _section("configurations", "Configurations" if len(report.configurations) > 1 else "Cost", *parts)


def _what_is_counted(report: RunReport) -> str:
    quality = next((m.name for task in report.tasks for m in task.measures if task.has_quality), None)
    counted = (
        "Means over the runs of a configuration, with the 95 % interval of the mean; a single run has no interval "
        "and is shown with two digits. Time: from the first step to the end, with validation and saving, without "
        "loading and encoding. Peak memory: tensors on the device, or the whole process on a CPU."
    )
    words = [counted]
    if quality == HELD_OUT_LOSS:
        words.append("Quality: the held-out loss after the last step, at fixed noise; lower is better.")
    if report.prices:
        words.append(f"Cost: time at {'; '.join(report.prices)}.")
    else:
        words.append("Cost: no price is known for these devices; set one: foretune report RUNS --price 1.20")
    return " ".join(words)


def _samples(report: RunReport, budget: PictureBudget) -> Markup | None:
    parts: list[Content] = []
    for task in report.tasks:
        found = sample_section(report, task, budget)
        if found:
            parts += [tag("h3", task_title(task))] if len(report.tasks) > 1 else []
            parts += found
    left_out = left_out_words(budget)
    parts += [] if left_out is None else [left_out]
    return _section("samples", "Samples", *parts) if parts else None


def _quality(report: RunReport) -> Markup | None:
    found = quality_table(report, report.configurations)
    if found is None:
        return None
    words = "Each run's images against those of the model it started from, on the same prompts and seeds."
    return _section("quality", "Quality before and after", tag("p", words, class_="lead"), found)


def _front(report: RunReport) -> Markup | None:
    parts: list[Content] = []
    for number, task in enumerate(report.tasks, start=1):
        if len(task.configurations) < 2:  # noqa: PLR2004
            continue
        panels = front_panels(task, f"task-{number}")
        if panels:
            if len(report.tasks) > 1:
                parts.append(tag("h3", task_title(task)))
            parts.append(tag("figure", tag("div", panels, class_="panels"), tag("figcaption", _front_words(task))))
    return _section("front", "Pareto front", *parts) if parts else None


def _front_words(task: RunTask) -> str:
    names = [measure.name for measure in task.axes]
    on = [one.configuration.letter for one in task.placed if one.standing == "on the front"]
    shown = ", ".join(on[:_MOST_FINDINGS]) + (
        f" and {len(on) - _MOST_FINDINGS} more" if len(on) > _MOST_FINDINGS else ""
    )
    maybe = sum(one.standing == "maybe" for one in task.placed)
    more = f" {maybe} more may be: others are better on average, but no difference is shown." if maybe else ""
    equal = (
        ""
        if TIME in names or task.group.kind != "training"
        else " Time was the same for all, so it is not one of them."
    )
    return (
        f"Filled points are on the Pareto front of {', '.join(names)}: no other configuration is at least as good in "
        f"all of them.{equal} On the front: {shown or 'none'}.{more} In each panel the line joins the best in its two "
        "measures alone; whiskers are 95 % intervals. Letters are those of the table above."
    )


def _forecast(report: RunReport) -> Markup | None:
    found = forecast_table(report, report.configurations)
    if found is None:
        return None
    words = "Speed and peak memory, planned before the first step, and measured; means over the runs."
    return _section("forecast", "Plan against measurement", tag("p", words, class_="lead"), found)


def _losses(report: RunReport) -> Markup | None:
    parts: list[Content] = []
    for number, task in enumerate(report.tasks, start=1):
        panels = loss_panels(task.configurations, f"task-{number}")
        if not panels:
            continue
        drawn = [one for one in task.configurations if one.finished][:MOST_CURVES]
        legend = (tag("li", swatch(f"b{i % MOST_CURVES}"), one.name) for i, one in enumerate(drawn))
        num_finished = sum(bool(one.finished) for one in task.configurations)
        words = "Means over runs; bands are the 95 % interval of the mean over seeds."
        if num_finished > len(drawn):
            words += f" Of {num_finished} configurations, the first {len(drawn)} are drawn."
        if len(report.tasks) > 1:
            parts.append(tag("h3", task_title(task)))
        figure = tag("div", panels, class_="panels")
        parts.append(tag("figure", figure, tag("ul", legend, class_="legend"), tag("figcaption", words)))
    return _section("losses", "Losses", *parts) if parts else None


def _phases(report: RunReport) -> Markup | None:
    timed = [one for one in report.configurations if phases_of(one.finished)]
    shown = timed[:_MOST_BARS]
    bars = phase_bars(shown, "phases")
    if bars is None:
        return None
    colours = phase_colours(phase_names(shown))
    legend = (tag("li", swatch(colour), name) for name, colour in colours.items())
    words = "Seconds of a run by phase, means over runs; the phases add up to its time."
    if len(timed) > len(shown):
        words += f" Of {len(timed)} configurations, the first {len(shown)} are drawn."
    figure = tag("figure", bars, tag("ul", legend, class_="legend"), tag("figcaption", words))
    return _section("phases", "Where the time goes", figure, phase_table(report, shown))


def _profiles(report: RunReport) -> Markup | None:
    found, left_out = diagnoses(report)
    if not found:
        return None
    parts: list[Content] = [tag("ul", found, class_="findings")]
    if left_out:
        parts.append(
            tag("p", f"{left_out} more profiles are not shown here; foretune profile RUN reads them.", class_="small")
        )
    return _section("profiles", "Profiles: what limits speed", *parts)


def _environment(report: RunReport) -> Markup:
    return _section("environment", "Environment", environment_table(report))


def _failures(report: RunReport) -> Markup | None:
    if not report.failed:
        return None
    return _section("failures", "Runs that did not finish", failure_table(report))


def _runs(report: RunReport) -> Markup:
    words = (
        "Every number above links to a row here, and from here to the file it was read from: events.jsonl has every "
        "step as measured. Paths are relative to this page."
    )
    warned = [(run, text) for run in report.runs if run.record is not None for text in run.record.warnings]
    parts: list[Content] = [tag("p", words, class_="lead"), run_table(report)]
    if warned:
        parts.append(tag("h3", "Warnings of runs"))
        parts.append(tag("ul", (_warning(report, *one) for one in warned[:_MOST_FINDINGS]), class_="findings"))
    if len(warned) > _MOST_FINDINGS:
        parts.append(tag("p", f"{len(warned) - _MOST_FINDINGS} more are in the run records.", class_="small"))
    return _section("runs", "Runs", *parts)


def _warning(report: RunReport, run: RunData, text: str) -> Markup:
    ref = report.refs[run.path]
    return tag("li", tag("a", ref.name, href=f"#{ref.anchor}"), ": ", text)


def _foot() -> Markup:
    return tag("footer", f"Foretune {__version__}. Made from the run directories alone, without network access.")
