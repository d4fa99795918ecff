"""The tables of a report. Every number links to its runs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from foretune.analyse.against_base import change_of
from foretune.analyse.comparability import too_few_steps
from foretune.analyse.groups import Configuration
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import CONFIDENCE, HELD_OUT_LOSS, Measure
from foretune.analyse.run_report import RunReport, RunTask
from foretune.analyse.single_result import held_out_ends
from foretune.core.scores import NEVER_NEGATIVE, Bounds, bounds_of, is_share
from foretune.core.units import bytes_text, measured_text, measured_value_text
from foretune.core.values.evaluation import Score
from foretune.reports.data_tables import Rows, TableCell, TableColumn, TableRow, data_table, numeric
from foretune.reports.markup import Markup, join, tag
from foretune.reports.numbers import NOTHING, figure, file_link, heading_of, link, of_run, traced
from foretune.reports.page import swatch
from foretune.reports.plan_against_run import PAIRS, UNITS, PlannedAndMeasured, PlannedKind
from foretune.reports.run_figures import phase_colours, phase_names, phases_of
from foretune.stats.bounded import bounded_mean
from foretune.stats.intervals import Estimate

_STANDING = {"on the front": "★", "maybe": "☆", "beaten": "", "not known": "?"}


def configuration_table(report: RunReport, task: RunTask) -> Markup:
    """Quality, time, speed, memory and cost of each configuration, the recommended one marked."""
    has_front = len(task.configurations) > 1
    columns = [
        TableColumn("Configuration"),
        *([TableColumn("machine")] if task.is_of_study else []),
        numeric("runs"),
        *(numeric(heading_of(m)) for m in task.measures),
        *([TableColumn("Pareto front")] if has_front else []),
    ]
    chosen = task.recommendation.chosen
    rows = []
    for one, where in zip(task.configurations, task.placed, strict=True):
        cells = [figure(report, one, m, m.estimate(one.finished)) for m in task.measures]
        count = f"{len(one.finished)}" + (f" of {len(one.runs)}" if len(one.finished) < len(one.runs) else "")
        standing = where.standing + (f" by {where.beaten_by}" if where.standing == "beaten" else "")
        front = join(tag("span", f"{_STANDING[where.standing]} ", aria_hidden="true"), standing)
        marked = "chosen" if has_front and chosen is not None and chosen.key == one.key else None
        machine = [one.machine] if task.is_of_study else []
        rows.append(
            TableRow([lettered(report, one), *machine, count, *cells, *([front] if has_front else [])], class_=marked)
        )
    return data_table("Configurations", columns, [Rows(rows)])


def lettered(report: RunReport, one: Configuration) -> Markup:
    """Its letter and its name, leading to its runs."""
    letter = tag("span", one.letter, class_="letter-mark") if one.letter else ""
    return join(letter, " " if letter else "", link(report, one, one.label))


def forecast_table(report: RunReport, found: Sequence[Configuration]) -> Markup | None:
    """What was planned before the first step beside what was measured, run by run in the mean of a configuration."""
    rows = [
        _forecast_row(report, one, kind, pairs)
        for one in found
        for kind, pair_of in PAIRS.items()
        if (pairs := {run.path: pair for run in one.finished if (pair := pair_of(run)) is not None})
    ]
    if not rows:
        return None
    columns = [TableColumn("Configuration"), TableColumn("of"), numeric("planned"), numeric("measured"),
               numeric("error of the plan"), numeric("error of single runs")]  # fmt: skip
    return data_table("Plan against measurement", columns, [Rows(rows)])


def _forecast_row(
    report: RunReport, one: Configuration, kind: PlannedKind, pairs: Mapping[Path, PlannedAndMeasured]
) -> TableRow:
    runs = [run for run in one.finished if run.path in pairs]
    unit, found = UNITS[kind], list(pairs.values())
    planned = statistics.fmean(pair.planned for pair in found)
    measured, low, high = _interval([pair.measured for pair in found])
    errors = [pair.error for pair in found]
    mean_error = statistics.fmean(errors)
    figures = [
        (measured_value_text(planned, None, None, unit), f"planned {kind}", planned),
        (measured_value_text(measured, low, high, unit), f"measured {kind}", measured),
        (_percent(mean_error), f"error of the planned {kind}", mean_error),
    ]
    span = f"{_percent(min(errors))} to {_percent(max(errors))}" if len(errors) > 1 else NOTHING
    return TableRow([lettered(report, one), found[0].what, *(traced(report, *each, runs) for each in figures), span])


def _interval(
    values: Sequence[float], bounds: Bounds = NEVER_NEGATIVE, num_outcomes: int = 0
) -> tuple[float, float | None, float | None]:
    """The mean over runs with its interval; one run has none."""
    if len(values) == 1:
        return values[0], None, None
    return bounded_mean(values, CONFIDENCE, bounds, num_outcomes=num_outcomes)


def _percent(share: float) -> str:
    return f"{share:+.0%}".replace("%", " %")


def phase_table(report: RunReport, found: Sequence[Configuration]) -> Markup:
    """The numbers behind the bars: mean seconds of a run by phase."""
    by_key = {one.key: phases_of(one.finished) for one in found}
    phases = phase_names(found)
    colours = phase_colours(phases)
    columns = [TableColumn("Phase"), *(numeric(one.letter or one.label) for one in found)]
    rows = []
    for phase in phases:
        cells: list[str] = []
        for one in found:
            values = by_key[one.key].get(phase)
            if not values:
                cells.append(NOTHING)
                continue
            mean, low, high = _interval(values)
            text = measured_value_text(mean, low, high, "s") if mean else "0 s"
            cells.append(link(report, one, traced(report, text, f"phase {phase}", mean, one.finished)))
        rows.append(TableRow([join(swatch(colours[phase]), phase), *cells]))
    return data_table("Seconds of a run by phase", columns, [Rows(rows)], has_short_cells=True)


def quality_table(report: RunReport, found: Sequence[Configuration]) -> Markup | None:
    """Scores before and after training, over the runs of a configuration."""
    groups = []
    for one in found:
        runs = [run for run in one.finished if run.path in report.evaluations]
        metrics = list(dict.fromkeys(s.metric for run in runs for s in report.evaluations[run.path].scores))
        rows = [row for metric in metrics if (row := _quality_row(report, one, runs, metric)) is not None]
        if HELD_OUT_LOSS not in metrics and (loss := _held_out_row(report, one)) is not None:
            rows.append(loss)
        if rows:
            groups.append(Rows(rows, lettered(report, one) if len(found) > 1 else None))
    if not groups:
        return None
    columns = [
        TableColumn("Metric"),
        numeric("before (base)"),
        numeric("after training"),
        numeric("change"),
        TableColumn("shown to be"),
    ]
    return data_table("Quality before and after training", columns, groups)


def _held_out_row(report: RunReport, one: Configuration) -> TableRow | None:
    """The loss that the training itself measured, where no evaluation did."""
    runs = [run for run in one.finished if held_out_ends(run) is not None]
    ends = [pair for run in runs if (pair := held_out_ends(run)) is not None]
    if not ends:
        return None
    cells = []
    for name, values in zip(("before", "after"), zip(*ends, strict=True), strict=True):
        mean, low, high = _interval(values)
        text = measured_value_text(mean, low, high, "")
        cells.append(link(report, one, traced(report, text, f"held-out loss, {name}", mean, runs)))
    return TableRow([_metric_name(HELD_OUT_LOSS, higher_is_better=False), *cells, NOTHING, NOTHING])


def _quality_row(report: RunReport, one: Configuration, runs: Sequence[RunData], metric: str) -> TableRow | None:
    scores = {
        column: [s for run in runs if (s := report.evaluations[run.path].score(metric, column)) is not None]
        for column in ("base", "run")
    }
    known = [score for score in scores["run"] if score.value is not None]
    if not known:
        why = next((s.why_absent for s in scores["run"] if s.why_absent), None)
        return None if why is None else TableRow([metric, TableCell(f"not measured: {why}", span=4)])
    cells = []
    for column in ("base", "run"):
        having = [
            run for run in runs if (s := report.evaluations[run.path].score(metric, column)) and s.value is not None
        ]
        measured = [score for score in scores[column] if score.value is not None]
        cells.append(_mean_cell(report, having, f"{metric}, {column}", measured))
    answers = [
        too_few_steps([run]) or d.answer
        for run in runs
        if (d := report.evaluations[run.path].difference(metric)) is not None
    ]
    counted = {answer: answers.count(answer) for answer in dict.fromkeys(answers)}
    answer = "; ".join(a if len(answers) == 1 else f"{a} in {n} of {len(answers)} runs" for a, n in counted.items())
    name = _metric_name(metric, higher_is_better=known[0].higher_is_better)
    return TableRow([name, *cells, _change_cell(report, one, metric), answer or NOTHING])


def _metric_name(metric: str, *, higher_is_better: bool | None) -> Markup:
    if higher_is_better is None:
        return join(metric)
    hidden = tag("span", " (higher is better)" if higher_is_better else " (lower is better)", class_="hidden")
    return join(metric, tag("span", " ↑" if higher_is_better else " ↓", aria_hidden="true"), hidden)


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
        steps = traced(report, f"{done:,}", "steps measured", done, [run])
        rows.append(TableRow([tag("a", ref.name, href=f"#{ref.anchor}"), run.end, steps, reason or NOTHING]))
    columns = [TableColumn("Run"), TableColumn("status"), numeric("steps"), TableColumn("reason", "reason")]
    return data_table("Runs that did not finish", columns, [Rows(rows)])


def run_table(report: RunReport) -> Markup:
    """Every run by configuration: where it is, its numbers, and the files they were read from."""
    measures: dict[str, Measure] = {m.name: m for task in report.tasks for m in task.measures}
    columns = [TableColumn("Run"), numeric("seed"), TableColumn("status"), numeric("steps"),
               *(numeric(heading_of(m)) for m in measures.values()), TableColumn("files", "files")]  # fmt: skip
    groups = []
    for task in report.tasks:
        own = {m.name: m for m in task.measures}
        for one in task.configurations:
            estimates = {name: m.estimate(one.finished) for name, m in own.items()}
            rows = [_run_row(report, run, [own.get(name) for name in measures], estimates) for run in one.runs]
            groups.append(
                Rows(rows, f"{one.letter}: {one.label}" if one.letter else one.label, report.anchors[one.key])
            )
    return data_table("Runs", columns, groups)


def _run_row(
    report: RunReport, run: RunData, columns: Sequence[Measure | None], estimates: Mapping[str, Estimate | None]
) -> TableRow:
    ref = report.refs[run.path]
    cells = [NOTHING if m is None else of_run(report, run, m, estimates.get(m.name)) for m in columns]
    files = ["experiment.yaml", "events.jsonl", *(["record.json"] if run.record is not None else [])]
    if run.path in report.evaluations:
        files.append("quality/evaluation.json")
    done = len(run.losses)
    path = tag("span", ref.path, class_="path") if ref.path != ref.name else ""
    return TableRow(
        [
            join(tag("span", ref.name), path),
            str(run.experiment.train.seed),
            run.end,
            file_link(ref, "events.jsonl", traced(report, f"{done:,}", "steps measured", done, [run])),
            *cells,
            join(*(join(file_link(ref, file, file), " ") for file in files)),
        ],
        id=ref.anchor,
    )


def environment_table(report: RunReport) -> Markup:
    """Hardware and software of the runs, a column for each environment."""
    found = report.environments
    keys = list(found)
    columns = [TableColumn("Environment"), *(TableColumn(key[:4]) for key in keys)]
    fields: list[tuple[str, Callable[[RunData], str]]] = [
        ("CPU", lambda run: _known(run.environment.get("cpu"))),
        ("usable CPU cores", lambda run: _known(run.environment.get("num_usable_cpus"))),
        ("devices", _devices),
        ("memory", lambda run: _bytes(run.environment.get("memory_bytes"))),
        ("operating system", lambda run: _known(run.environment.get("distribution") or run.environment.get("system"))),
        ("Python", lambda run: _known(run.environment.get("python"))),
        ("torch", lambda run: _known((run.environment.get("packages") or {}).get("torch"))),
        ("diffusers", lambda run: _known((run.environment.get("packages") or {}).get("diffusers"))),
        ("torch threads", lambda run: _known((run.environment.get("torch") or {}).get("num_threads"))),
        ("driver", lambda run: _known(run.environment.get("nvidia_driver") or run.environment.get("amd_driver"))),
        ("Foretune", lambda run: _known(run.environment.get("foretune"))),
        ("source", lambda run: _known((run.environment.get("source") or {}).get("commit"))),
        ("runs", lambda run: str(len(found[next(k for k in keys if run in found[k])]))),
    ]
    rows = []
    for name, text in fields:
        texts = [text(found[key][0]) for key in keys]
        if any(one != "–" for one in texts):
            rows.append(TableRow([name, *texts]))
    return data_table("Environments", columns, [Rows(rows)], has_short_cells=len(keys) == 1)


def _known(value: object) -> str:
    return "–" if value is None or value == "" else str(value)


def _bytes(value: object) -> str:
    return bytes_text(value) if isinstance(value, (int, float)) else "–"


def _devices(run: RunData) -> str:
    devices = (run.environment.get("torch") or {}).get("devices") or ()
    return ", ".join(str(device.get("name")) for device in devices) or "CPU only"
