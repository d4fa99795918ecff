"""What a set of runs was asked, in a table: what they share, and what sets them apart."""

from foretune.analyse.groups import differing
from foretune.analyse.run_report import RunReport, Task, model_name
from foretune.report.markup import Markup, tag

_SHARED = (
    ("method.kind", "method"),
    ("method.rank", "rank"),
    ("train.steps", "steps"),
    ("train.epochs", "epochs"),
    ("train.seconds", "seconds"),
    ("train.batch_size", "batch"),
    ("train.precision", "precision"),
    ("optimizer.kind", "optimizer"),
    ("optimizer.lr", "learning rate"),
    ("quantize.denoiser", "base in"),
    ("parallel.devices", "devices"),
)
_MOST_VALUES = 8


def asked_table(report: RunReport) -> Markup:
    """Names and values as a list of terms: it reads well at any width."""
    rows = [("Model", ", ".join(dict.fromkeys(model_name(run) for run in report.runs))), ("Data", _data(report))]
    common = report.common_settings()
    shared = [f"{word} {_value(common[name])}" for name, word in _SHARED if common.get(name) not in (None, "none")]
    if shared:
        rows.append(("The same in all", ", ".join(shared)))
    every = [one.settings for one in report.configurations]
    apart = differing(every)
    for name in apart[:_MOST_VALUES]:
        values = list(dict.fromkeys(_value(settings[name]) for settings in every if name in settings))
        more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
        rows.append((f"Varied: {name}", ", ".join(values[:_MOST_VALUES]) + more))
    if len(apart) > _MOST_VALUES:
        rows.append(("Varied, too", ", ".join(apart[_MOST_VALUES:])))
    return tag("dl", (tag("div", tag("dt", name), tag("dd", text)) for name, text in rows), class_="asked")


def task_title(task: Task) -> str:
    """Which of several tasks this is: model, data and size."""
    settings = task.configurations[0].settings
    size = settings.get("data.resolution")
    title = f"{task.model}, {settings.get('data.kind')}"
    return f"{title} at {size} px" if size else title


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
        size = run.effective.get("resolution_px")
        num = run.effective.get("num_train_samples")
        parts: list[str] = [run.experiment.data.kind]
        if isinstance(num, int):
            parts.append(f"{num:,} images")
        if size:
            parts.append(f"{size} px")
        found.append(", ".join(parts))
    unlike = list(dict.fromkeys(found))
    return "; ".join(unlike[:_MOST_VALUES]) + (
        f"; {len(unlike) - _MOST_VALUES} more" if len(unlike) > _MOST_VALUES else ""
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "left out"
    return str(value)
