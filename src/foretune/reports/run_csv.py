"""Runs as a table for other programs: one row a run, raw numbers, units in the header."""

import csv
import io

from foretune.analyse.groups import differing
from foretune.analyse.run_numbers import HELD_OUT_LOSS, MEMORY, MONEY, SPEED, TIME
from foretune.analyse.run_report import RunReport

_COLUMNS = {TIME: "time_s", SPEED: "speed_samples_per_s", MEMORY: "peak_memory_bytes", MONEY: "cost_usd"}
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def runs_csv(report: RunReport) -> str:
    """Text that begins like a formula is put behind an apostrophe, so that a spreadsheet does not compute it."""
    # The model has a column of its own.
    varied = [name for name in differing([one.settings for one in report.configurations]) if name != "model"]
    metrics = list(
        dict.fromkeys(
            measure.name
            for task in report.tasks
            for measure in task.measures
            if measure.name not in (*_COLUMNS, HELD_OUT_LOSS)
        )
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        safe(cell)
        for cell in (
            "run", "path", "configuration", "model", "seed", "status", "steps", *_COLUMNS.values(), "held_out_loss",
            "last_loss", *metrics, "environment", *varied,
        )
    )  # fmt: skip
    keys = {run.path: key[:8] for key, runs in report.environments.items() for run in runs}
    for task in report.tasks:
        measures = {measure.name: measure for measure in task.measures}
        for one in task.configurations:
            for run in one.runs:
                ref = report.refs[run.path]
                numbers = [measures[name].of(run) if name in measures else None for name in _COLUMNS]
                scores = [measures[name].of(run) if name in measures else None for name in metrics]
                held_out = run.held_out_losses[-1][1] if run.held_out_losses else None
                last = run.losses[-1] if run.losses else None
                cells = (
                    run.run_id, ref.path, one.label, task.model, run.experiment.train.seed, run.end, len(run.losses),
                    *numbers, held_out, last, *scores, keys[run.path], *(one.settings.get(name) for name in varied),
                )  # fmt: skip
                writer.writerow(safe(cell) for cell in cells)
    return out.getvalue()


def safe(cell: object) -> str:
    """Numbers as they are; absent is empty; text never as a formula."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return repr(cell)
    if isinstance(cell, (int, bool)):
        return str(cell)
    text = str(cell)
    # Blanks before it are skipped by some programs.
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) or text.startswith(_FORMULA_STARTS) else text
