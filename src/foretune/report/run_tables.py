"""The tables of a report. Every number leads to its runs."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from foretune.analyse.against_base import change_of
from foretune.analyse.comparability import too_few_steps
from foretune.analyse.groups import Configuration
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import CONFIDENCE, Measure
from foretune.analyse.run_report import RunReport, Task
from foretune.core.scores import NEVER_NEGATIVE, Bounds, bounds_of, is_share
from foretune.core.units import bytes_text, measured_text, measured_value_text
from foretune.core.values import Plan
from foretune.core.values.evaluation import Score
from foretune.report.markup import Content, Markup, join, tag
from foretune.report.numbers import NOTHING, figure, file_link, heading_of, link, of_run, traced
from foretune.report.page import number, scrolled, swatch
from foretune.report.run_figures import phase_colours, phase_names, phases_of
from foretune.stats.bounded import bounded_mean
from foretune.stats.intervals import Estimate

_STANDING = {"on the front": "★", "maybe": "☆", "beaten": "", "not known": "?"}


def table(caption: str, headings: Sequence[tuple[str, bool]], *bodies: Content, hides_caption: bool = True) -> Markup:
    """A table with a caption that readers hear; `headings` are (text, whether numbers stand below)."""
    row = (tag("th", text, scope="col", class_="number" if is_number else None) for text, is_number in headings)
    head = tag("thead", tag("tr", row))
    title = tag("caption", caption, class_="hidden" if hides_caption else None)
    return scrolled(tag("table", title, head, *bodies), caption)


def configuration_table(report: RunReport, task: Task, names: Mapping[str, str]) -> Markup:
    """Quality, time, speed, memory and money of each configuration, the recommended one marked."""
    headings = [
        ("Configuration", False),
        ("runs", True),
        *((heading_of(m), True) for m in task.measures),
        ("front", False),
    ]
    chosen = task.recommendation.chosen
    rows = []
    for one, where in zip(task.configurations, task.placed, strict=True):
        name = join(tag("span", names[one.key], class_="letter-mark"), " ", link(report, one, one.label))
        cells = [tag("td", figure(report, one, m, m.estimate(one.finished)), class_="number") for m in task.measures]
        count = f"{len(one.finished)}" + (f" of {len(one.runs)}" if len(one.finished) < len(one.runs) else "")
        standing = join(
            tag("span", f"{_STANDING[where.standing]} ", aria_hidden="true"),
            where.standing
            if where.beaten_by is None
            else f"{where.standing} by {where.beaten_by}"
            if where.standing == "beaten"
            else "maybe",
        )
        marked = "chosen" if chosen is not None and chosen.key == one.key else None
        rows.append(tag("tr", tag("th", name, scope="row"), number(count), cells, tag("td", standing), class_=marked))
    return table("Configurations", headings, tag("tbody", rows))


def forecast_table(report: RunReport, found: Sequence[Configuration]) -> Markup | None:
    """What was planned before the first step beside what was measured, run by run in the mean of a configuration."""
    rows = []
    for one in found:
        pairs = {run.path: pair for run in one.finished if (pair := planned_and_measured(run)) is not None}
        if not pairs:
            continue
        runs = [run for run in one.finished if run.path in pairs]
        expected = statistics.fmean(planned for planned, _, _ in pairs.values())
        measured, low, high = _interval([peak for _, peak, _ in pairs.values()])
        off = [planned / peak - 1 for planned, peak, _ in pairs.values()]
        mean_off = statistics.fmean(off)
        what = pairs[runs[0].path][2]
        told = [
            (measured_value_text(expected, None, None, "bytes"), "planned peak", expected),
            (measured_value_text(measured, low, high, "bytes"), "measured peak", measured),
            (_percent(mean_off), "forecast error", mean_off),
        ]
        name = tag("th", link(report, one, one.label), scope="row")
        figures = (number(traced(report, *each, runs)) for each in told)
        span = f"{_percent(min(off))} to {_percent(max(off))}" if len(off) > 1 else NOTHING
        rows.append(tag("tr", name, tag("td", what), figures, number(span)))
    if not rows:
        return None
    headings = [("Configuration", False), ("of what", False), ("planned", True), ("measured", True),
                ("forecast is off by", True), ("in single runs", True)]  # fmt: skip
    return table("Forecast against measurement", headings, tag("tbody", rows))


def _interval(
    values: Sequence[float], bounds: Bounds = NEVER_NEGATIVE, num_outcomes: int = 0
) -> tuple[float, float | None, float | None]:
    """The mean over runs with its interval; one run has none."""
    if len(values) == 1:
        return values[0], None, None
    return bounded_mean(values, CONFIDENCE, bounds, num_outcomes=num_outcomes)


def _percent(share: float) -> str:
    return f"{share:+.0%}".replace("%", " %")


def planned_and_measured(run: RunData) -> tuple[int, int, str] | None:
    """Planned bytes, measured bytes, and of what: tensors on a device, the whole process on the host."""
    plan: Plan | None = None if run.record is None else run.record.plan
    if run.record is None or plan is None:
        return None
    measured = run.record.measured
    if measured.peak_device_bytes is not None:
        return plan.at_peak.allocated_bytes, measured.peak_device_bytes, "device tensors"
    if measured.peak_host_bytes is None:
        return None
    return plan.at_peak.process_bytes, measured.peak_host_bytes, "process"


def phase_table(report: RunReport, found: Sequence[Configuration], names: Mapping[str, str]) -> Markup:
    """The numbers behind the bars: mean seconds of a run by phase."""
    by_key = {one.key: phases_of(one.finished) for one in found}
    phases = phase_names(found)
    colours = phase_colours(phases)
    headings = [("Phase", False), *((names[one.key], True) for one in found)]
    rows = []
    for phase in phases:
        cells = []
        for one in found:
            values = by_key[one.key].get(phase)
            if not values:
                cells.append(number(NOTHING))
                continue
            mean, low, high = _interval(values)
            text = measured_value_text(mean, low, high, "s") if mean else "0 s"
            cells.append(number(link(report, one, traced(report, text, f"phase {phase}", mean, one.finished))))
        rows.append(tag("tr", tag("th", swatch(colours[phase]), phase, scope="row"), cells))
    return table("Seconds of a run by phase", headings, tag("tbody", rows))


def quality_table(report: RunReport, found: Sequence[Configuration]) -> Markup | None:
    """Scores of the base and of the run, over the runs of a configuration."""
    bodies = []
    for one in found:
        runs = [run for run in one.finished if run.path in report.evaluations]
        metrics = list(dict.fromkeys(s.metric for run in runs for s in report.evaluations[run.path].scores))
        rows = [row for metric in metrics if (row := _quality_row(report, one, runs, metric)) is not None]
        if rows:
            name = tag("th", link(report, one, one.label), scope="rowgroup", rowspan=len(rows))
            bodies.append(tag("tbody", (tag("tr", name if i == 0 else [], row) for i, row in enumerate(rows))))
    if not bodies:
        return None
    headings = [
        ("Configuration", False),
        ("metric", False),
        ("base", True),
        ("after training", True),
        ("change", True),
        ("answer", False),
    ]
    return table("Quality of the base and of the runs", headings, *bodies)


def _quality_row(report: RunReport, one: Configuration, runs: Sequence[RunData], metric: str) -> Markup | None:
    scores = {
        column: [s for run in runs if (s := report.evaluations[run.path].score(metric, column)) is not None]
        for column in ("base", "run")
    }
    known = [score for score in scores["run"] if score.value is not None]
    if not known:
        why = next((s.why_absent for s in scores["run"] if s.why_absent), None)
        return (
            None if why is None else join(tag("th", metric, scope="row"), tag("td", f"not measured: {why}", colspan=4))
        )
    cells = []
    for column in ("base", "run"):
        having = [
            run for run in runs if (s := report.evaluations[run.path].score(metric, column)) and s.value is not None
        ]
        measured = [score for score in scores[column] if score.value is not None]
        cells.append(number(_mean_cell(report, having, f"{metric}, {column}", measured)))
    answers = [
        too_few_steps([run]) or d.answer
        for run in runs
        if (d := report.evaluations[run.path].difference(metric)) is not None
    ]
    counted = {answer: answers.count(answer) for answer in dict.fromkeys(answers)}
    told = "; ".join(a if len(answers) == 1 else f"{a} in {n} of {len(answers)} runs" for a, n in counted.items())
    side = known[0].higher_is_better
    sense = "" if side is None else " ↑" if side else " ↓"
    hidden = "" if side is None else tag("span", " (more is better)" if side else " (less is better)", class_="hidden")
    heading = tag("th", metric, tag("span", sense, aria_hidden="true"), hidden, scope="row")
    return join(heading, *cells, number(_change_cell(report, one, metric)), tag("td", told or NOTHING))


def _change_cell(report: RunReport, one: Configuration, metric: str) -> Markup:
    change = change_of(one, report.evaluations, metric)
    if change is None:
        return NOTHING
    value, _, interval = measured_text(change.value, change.low, change.high, change.unit).partition(" (")
    shown = traced(report, value, f"{metric}, change", change.value, change.runs)
    return join(shown, tag("span", interval.removesuffix(")") or "no interval", class_="interval"))


def _mean_cell(report: RunReport, runs: Sequence[RunData], name: str, scores: Sequence[Score]) -> Markup:
    values = [score.value for score in scores if score.value is not None]
    if not values:
        return NOTHING
    first = scores[0]
    num_outcomes = sum(score.num_values for score in scores) if is_share(first.metric) else 0
    mean, low, high = _interval(values, bounds_of(first.metric), num_outcomes)
    if len(set(values)) == 1:
        # Of one run, or of the base that all have in common, the interval over prompts is known.
        low, high = first.low, first.high
    return traced(report, measured_value_text(mean, low, high, first.unit), name, mean, runs)


def failure_table(report: RunReport) -> Markup:
    """Runs that did not finish, and why."""
    rows = []
    for run in report.failed:
        ref = report.refs[run.path]
        reason = None if run.record is None else run.record.outcome.reason
        done = len(run.losses)
        rows.append(
            tag(
                "tr",
                tag("th", tag("a", ref.name, href=f"#{ref.anchor}"), scope="row"),
                tag("td", run.end),
                number(traced(report, f"{done:,}", "steps measured", done, [run])),
                tag("td", reason or NOTHING, class_="reason"),
            )
        )
    headings = [("Run", False), ("end", False), ("steps", True), ("why", False)]
    return table("Runs that did not finish", headings, tag("tbody", rows))


def run_table(report: RunReport) -> Markup:
    """Every run by configuration: where it lies, what was read of it, and from which file."""
    measures: dict[str, Measure] = {m.name: m for task in report.tasks for m in task.measures}
    headings = [("Run", False), ("seed", True), ("end", False), ("steps", True),
                *((heading_of(m), True) for m in measures.values()), ("read from", False)]  # fmt: skip
    bodies = []
    for task in report.tasks:
        own = {m.name: m for m in task.measures}
        for one in task.configurations:
            title = tag("tr", tag("th", one.label, colspan=len(headings), scope="rowgroup", class_="group"))
            estimates = {name: m.estimate(one.finished) for name, m in own.items()}
            rows = [_run_row(report, run, [own.get(name) for name in measures], estimates) for run in one.runs]
            bodies.append(tag("tbody", title, rows, id=report.anchors[one.key]))
    return table("Runs", headings, *bodies)


def _run_row(
    report: RunReport, run: RunData, columns: Sequence[Measure | None], estimates: Mapping[str, Estimate | None]
) -> Markup:
    ref = report.refs[run.path]
    cells = [number(NOTHING if m is None else of_run(report, run, m, estimates.get(m.name))) for m in columns]
    files = ["experiment.yaml", "events.jsonl", *(["record.json"] if run.record is not None else [])]
    if run.path in report.evaluations:
        files.append("quality/evaluation.json")
    done = len(run.losses)
    return tag(
        "tr",
        tag(
            "th",
            tag("span", ref.name),
            tag("span", ref.path, class_="path") if ref.path != ref.name else [],
            scope="row",
        ),
        number(str(run.experiment.train.seed)),
        tag("td", run.end),
        number(file_link(ref, "events.jsonl", traced(report, f"{done:,}", "steps measured", done, [run]))),
        cells,
        tag("td", (join(file_link(ref, file, file), " ") for file in files), class_="files"),
        id=ref.anchor,
    )


def environment_table(report: RunReport) -> Markup:
    """What the numbers were measured in, a column for each environment."""
    found = report.environments
    keys = list(found)
    headings = [("", False), *((f"environment {key[:4]}", False) for key in keys)]
    fields: list[tuple[str, Callable[[RunData], str]]] = [
        ("processor", lambda run: _known(run.environment.get("cpu"))),
        ("processors usable", lambda run: _known(run.environment.get("num_usable_cpus"))),
        ("devices", _devices),
        ("memory", lambda run: _bytes(run.environment.get("memory_bytes"))),
        ("system", lambda run: _known(run.environment.get("distribution") or run.environment.get("system"))),
        ("Python", lambda run: _known(run.environment.get("python"))),
        ("torch", lambda run: _known((run.environment.get("packages") or {}).get("torch"))),
        ("diffusers", lambda run: _known((run.environment.get("packages") or {}).get("diffusers"))),
        ("threads of torch", lambda run: _known((run.environment.get("torch") or {}).get("num_threads"))),
        ("driver", lambda run: _known(run.environment.get("nvidia_driver") or run.environment.get("amd_driver"))),
        ("Foretune", lambda run: _known(run.environment.get("foretune"))),
        ("source", lambda run: _known((run.environment.get("source") or {}).get("commit"))),
        ("runs", lambda run: str(len(found[next(k for k in keys if run in found[k])]))),
    ]
    rows = []
    for name, text in fields:
        texts = [text(found[key][0]) for key in keys]
        if any(one != "–" for one in texts):
            rows.append(tag("tr", tag("th", name, scope="row"), (tag("td", one) for one in texts)))
    return table("Environments", headings, tag("tbody", rows))


def _known(value: object) -> str:
    return "–" if value is None or value == "" else str(value)


def _bytes(value: object) -> str:
    return bytes_text(value) if isinstance(value, (int, float)) else "–"


def _devices(run: RunData) -> str:
    devices = (run.environment.get("torch") or {}).get("devices") or ()
    return ", ".join(str(device.get("name")) for device in devices) or "none but the processor"
