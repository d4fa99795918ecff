"""What a set of runs was set up with: what they share, and what differs."""

from foretune.analyse.groups import differing
from foretune.analyse.run_report import RunReport, RunTask, model_name
from foretune.reports.data_tables import Rows, TableColumn, TableRow, data_table
from foretune.reports.markup import Markup, tag

_SHARED = (
    ("method.kind", "method"),
    ("method.rank", "rank"),
    ("train.steps", "steps"),
    ("train.epochs", "epochs"),
    ("train.seconds", "training seconds"),
    ("train.batch_size", "batch"),
    ("train.precision", "precision"),
    ("optimizer.kind", "optimizer"),
    ("optimizer.lr", "learning rate"),
    ("quantize.denoiser", "quantised base"),
    ("parallel.devices", "devices"),
)
_MOST_VALUES = 8


_MOST_COLUMNS = 12
"""Configurations whose settings stand in columns of their own; more are listed by value."""


def shared_list(report: RunReport) -> Markup:
    """What all runs have in common, as a list of terms: it reads well at any width."""
    rows = [("Model", ", ".join(dict.fromkeys(model_name(run) for run in report.runs))), ("Data", _data(report))]
    common = report.common_settings()
    shared = [f"{word} {_value(common[name])}" for name, word in _SHARED if common.get(name) not in (None, "none")]
    if shared:
        rows.append(("Same in all" if len(report.configurations) > 1 else "Settings", ", ".join(shared)))
    every = [one.settings for one in report.configurations]
    if len(every) > _MOST_COLUMNS:
        rows += _varied(report)
    return tag("dl", (tag("div", tag("dt", name), tag("dd", text)) for name, text in rows), class_="asked")


def difference_table(report: RunReport) -> Markup | None:
    """The settings in which configurations differ, a column for each configuration."""
    found = report.configurations
    apart = differing([one.settings for one in found])
    if not apart or len(found) > _MOST_COLUMNS:
        return None
    columns = [TableColumn("Setting"), *(TableColumn(one.letter) for one in found)]
    rows = [
        TableRow([name, *(_value(one.settings[name]) if name in one.settings else "–" for one in found)])
        for name in apart
    ]
    return data_table("Settings that differ", columns, [Rows(rows)], has_short_cells=True)


def _varied(report: RunReport) -> list[tuple[str, str]]:
    every = [one.settings for one in report.configurations]
    apart = differing(every)
    rows = []
    for name in apart[:_MOST_VALUES]:
        values = list(dict.fromkeys(_value(settings[name]) for settings in every if name in settings))
        more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
        rows.append((f"Differs: {name}", ", ".join(values[:_MOST_VALUES]) + more))
    if len(apart) > _MOST_VALUES:
        rows.append(("Also differ", ", ".join(apart[_MOST_VALUES:])))
    return rows


def task_title(task: RunTask) -> str:
    """Which of several tasks this is: model, data, size, and the length or that it is a benchmark or a profile."""
    settings = task.configurations[0].settings
    size = settings.get("data.resolution")
    title = f"{task.model}, {settings.get('data.kind')}"
    title = f"{title} at {size} px" if size else title
    if task.group.kind != "training":
        return f"{'Benchmark' if task.group.kind == 'bench' else 'Profile'}: {title}"
    return f"{title}, {task.group.length}" if task.group.is_split_by_length and task.group.length else title


def count_text(report: RunReport) -> str:
    """How many configurations there are."""
    num = len(report.configurations)
    return "One configuration" if num == 1 else f"{num:,} configurations"


def seeds_text(report: RunReport) -> str:
    """How often each was repeated."""
    runs = f"{len(report.runs):,} runs" if len(report.runs) != 1 else "one run"
    seeds = sorted({run.experiment.train.seed for run in report.runs})
    if len(seeds) == 1:
        return f"{runs} with seed {seeds[0]}"
    return f"{runs} with {len(seeds)} seeds"


def _data(report: RunReport) -> str:
    found = []
    for run in report.runs:
        num = run.effective.get("num_train_samples")
        parts: list[str] = [run.experiment.data.kind]
        if isinstance(num, int):
            parts.append(f"{num:,} {run.kind_of_samples}")
        if run.size_text is not None:
            parts.append(run.size_text)
        found.append(", ".join(parts))
    unlike = list(dict.fromkeys(found))
    return "; ".join(unlike[:_MOST_VALUES]) + (
        f"; {len(unlike) - _MOST_VALUES} more" if len(unlike) > _MOST_VALUES else ""
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "not set"
    return str(value)
