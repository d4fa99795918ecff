"""A sweep as a table for other programs: runs_summary.csv, one row for each trial."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from foretune.reports.run_csv import safe
from foretune.sweeps.trial_results import TrialResult

RUNS_SUMMARY = "runs_summary.csv"
_Cell = Callable[[TrialResult], object]

COLUMNS: Mapping[str, tuple[str, _Cell]] = {
    "outcome": (
        "done, or what happened instead: out of device memory, out of host memory, timed out, killed, crashed, ...",
        lambda result: result.outcome.kind,
    ),
    "reason": ("Why it is not done.", lambda result: result.outcome.reason),
    "seed": ("`train.seed`; trials that differ only in it are repeats.", lambda result: result.seed),
    "num_devices": ("Devices of the trial.", lambda result: result.numbers.num_devices),
    "num_steps": ("Optimizer steps made.", lambda result: result.numbers.num_steps),
    "samples_per_s": ("Samples per second of all devices, after warm-up.", lambda result: result.numbers.samples_per_s),
    "samples_per_s_per_device": (
        "The same for one device.",
        lambda result: result.numbers.samples_per_s_per_device,
    ),
    "step_s": ("Median time of an optimizer step after warm-up.", lambda result: result.numbers.step_s),
    "epoch_s": ("Time for `epoch_samples` samples.", lambda result: result.numbers.epoch_s),
    "peak_planned_bytes": (
        "Forecast: tensors of a GPU, or the whole process on a CPU.",
        lambda result: result.numbers.planned_peak_bytes,
    ),
    "peak_measured_bytes": ("The same, measured.", lambda result: result.numbers.measured_peak_bytes),
    "peak_reserved_bytes": (
        "The most that the allocator held of a GPU.",
        lambda result: result.numbers.reserved_peak_bytes,
    ),
    "first_loss": ("Loss of the first step.", lambda result: result.numbers.first_loss),
    "last_loss": ("Loss of the last step.", lambda result: result.numbers.last_loss),
    "held_out_loss": ("Held-out loss after the last step.", lambda result: result.numbers.held_out_loss),
    "compile_s": ("What the first steps took beyond steady ones.", lambda result: result.numbers.compile_s),
    "prepare_s": ("Loading, reading images, encoding.", lambda result: result.numbers.prepare_s),
    "train_s": ("From the first step to the end.", lambda result: result.numbers.train_s),
    "trial_s": ("The whole trial, with loading.", lambda result: result.outcome.seconds),
    "energy_j": ("Energy of the devices, where a sensor reports it.", lambda result: result.numbers.energy_j),
    "usd": ("Price of the devices for the whole trial, where a price is known.", lambda result: result.usd),
    "host": ("Machine of the last attempt.", lambda result: result.outcome.host),
    "num_attempts": ("More than 1 after an interruption.", lambda result: result.outcome.num_attempts),
    "environment": (
        "Hash of hardware and software; compare only rows that share it.",
        lambda result: result.numbers.environment,
    ),
}
"""What each column after the axes means, and its value."""


def sweep_csv(results: Sequence[TrialResult], folder: Path) -> str:
    """One row for each trial: its name, the axes under their full keys, the columns above, its run directory."""
    axes = list(dict.fromkeys(axis for result in results for axis in result.labels))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", *axes, *COLUMNS, "run"])
    for result in results:
        run = None if result.run is None else result.run.relative_to(folder).as_posix()
        cells = [value(result) for _, value in COLUMNS.values()]
        labels = [result.labels.get(axis) for axis in axes]
        writer.writerow(safe(cell) for cell in (result.name, *labels, *cells, run))
    return out.getvalue()
