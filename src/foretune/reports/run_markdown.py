"""The report in Markdown: the answer and its tables, for an issue, a notebook or a wiki."""

import re
from collections.abc import Sequence
from urllib.parse import quote

from foretune import __version__
from foretune.analyse.joined_view import JoinedView
from foretune.analyse.run_numbers import Measure
from foretune.analyse.run_report import RunReport, RunTask
from foretune.core.units import measured_text
from foretune.core.values import Finding
from foretune.reports.plan_against_run import PAIRS
from foretune.reports.run_question import count_text, seeds_text, task_title
from foretune.stats.intervals import Estimate

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~&$])")


def report_markdown(
    report: RunReport,
    title: str | None = None,
    findings: Sequence[Finding] = (),
    joined: Sequence[JoinedView] = (),
) -> str:
    """Text of runs never becomes markup: what has a meaning in Markdown or HTML is escaped."""
    lines = [
        f"# {escaped(title or 'Report')}",
        "",
        f"{count_text(report)}, {seeds_text(report)}.",
        "",
    ]
    lines += ["## Result", ""]
    for task in report.tasks:
        finding = task.recommendation.finding
        lines += [f"### {escaped(task_title(task))}", ""] if len(report.tasks) > 1 else []
        lines += [f"**{escaped(task.recommendation.headline)}.**", ""]
        lines += [escaped(task.recommendation.detail), ""] if task.recommendation.detail else []
        lines += [escaped(finding.caveat), ""] if finding.caveat else []
        lines += [*(f"- {escaped(one.sentence)}" for one in task.against_base), ""] if task.against_base else []
        if task.missing:
            lines += ["What more runs would show:", "", *(f"- {escaped(one.sentence)}" for one in task.missing), ""]
    if findings:
        lines += ["## Findings of the study", ""]
        lines += [f"- {escaped(one.sentence)}" for one in findings] + [""]
    for view in joined:
        lines += [f"## {escaped(view.title)}", "", *markdown_table(view.table()), ""]
    for task in report.tasks:
        lines += [f"## Configurations of {escaped(task_title(task))}", "", *_table(task), ""]
    forecast = _forecast(report)
    if forecast:
        lines += ["## Plan against measurement", "", *forecast, ""]
    if report.failed:
        lines += ["## Runs that did not finish", ""]
        for run in report.failed:
            reason = None if run.record is None else run.record.outcome.reason
            lines.append(
                f"- {escaped(report.refs[run.path].name)}: {escaped(run.end)}. {escaped(reason or '')}".rstrip()
            )
        lines.append("")
    lines += ["## Runs", ""]
    for one in report.configurations:
        links = (
            f"[{escaped(report.refs[run.path].name)}](./{quote(report.refs[run.path].path)}/events.jsonl)"
            for run in one.runs
        )
        lines.append(f"- {escaped(one.name)}: {', '.join(links)}")
    prices = "; ".join(report.prices)
    cost = f" Cost: time at {escaped(prices)}." if prices else ""
    lines += ["", f"Means over runs with 95 % intervals.{cost} Foretune {__version__}.", ""]
    return "\n".join(lines)


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first row is the head."""
    head, *others = (f"| {' | '.join(map(escaped, row))} |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *others]


def escaped(text: str) -> str:
    """One line in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("://", ":\u200b//")


def _table(task: RunTask) -> list[str]:
    machines = ["machine"] if task.is_of_study else []
    heads = ["", "configuration", *machines, "runs", *(measure.name for measure in task.measures), "Pareto front"]
    rows = ["| " + " | ".join(escaped(head) for head in heads) + " |", "|" + "---|" * len(heads)]
    for one, where in zip(task.configurations, task.placed, strict=True):
        failed = f" of {len(one.runs)}" if len(one.finished) < len(one.runs) else ""
        machine = [escaped(one.machine)] if machines else []
        cells = [one.letter, escaped(one.label), *machine, f"{len(one.finished)}{failed}"]
        cells += [_cell(measure, measure.estimate(one.finished)) for measure in task.measures]
        rows.append("| " + " | ".join([*cells, where.standing]) + " |")
    return rows


def _cell(measure: Measure, estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return escaped(measured_text(estimate.value, estimate.low, estimate.high, measure.unit))


def _forecast(report: RunReport) -> list[str]:
    rows = []
    for one in report.configurations:
        for kind, pair_of in PAIRS.items():
            errors = [pair.error for run in one.finished if (pair := pair_of(run)) is not None]
            if errors:
                rows.append(f"- {escaped(one.name)}: planned {kind} off by {sum(errors) / len(errors):+.0%}")
    return rows
