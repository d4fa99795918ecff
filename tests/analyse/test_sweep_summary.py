"""The answer of a sweep: a best one with its lead, or "cannot tell"."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from foretune.analyse.sweep_summary import summarise_sweep
from foretune.choices.sweep import SweepFile
from foretune.executors.outcome import OutcomeKind, TaskOutcome
from foretune.reports.sweep_csv import COLUMNS, sweep_csv
from foretune.reports.sweep_plots import _with_epoch, write_sweep_plots
from foretune.sweeps.trial_results import TrialNumbers, TrialResult

ROOT = Path(__file__).parents[2]
EXPERIMENT = {"model": "flux.1-dev"}


def trial(batch: int, seed: int, speed: float, kind: OutcomeKind = "done", **numbers: float) -> TrialResult:
    return TrialResult(
        name=f"batch-{batch}-{seed}",
        content=f"{batch}{seed}",
        labels={"train.batch_size": str(batch)},
        changes={},
        seed=seed,
        outcome=TaskOutcome(kind=kind, reason=None if kind == "done" else "no memory", seconds=3.0),
        run=None,
        numbers=TrialNumbers(samples_per_s=speed, num_devices=2, **numbers) if kind == "done" else TrialNumbers(),  # type: ignore[arg-type]
    )


def file(**more: object) -> SweepFile:
    mapping = {"experiment": EXPERIMENT, "axes": {"train.batch_size": [1, 2, 4, 8]}, "measure": "speed", **more}
    return SweepFile.model_validate(mapping)


def trials(speeds: dict[int, Sequence[float]]) -> list[TrialResult]:
    return [trial(batch, seed, speed) for batch, values in speeds.items() for seed, speed in enumerate(values)]


def test_a_best_is_named_with_its_lead_where_it_is_shown() -> None:
    results = trials({1: [10.0, 10.1, 9.9], 2: [12.0, 12.1, 11.9], 4: [15.0, 15.1, 14.9]})
    summary = summarise_sweep("s", file(), results, None)
    assert summary.best == "batch_size 4"
    assert summary.headline == "Best by speed: batch_size 4"
    assert "faster by 3.00 samples/s (2.77 to 3.23 samples/s) than batch_size 2, the closest." in summary.detail


def test_nothing_is_best_without_repeats_or_where_they_overlap() -> None:
    one_each = summarise_sweep("s", file(), trials({1: [10.0], 2: [20.0]}), None)
    assert one_each.best is None
    assert "one run of each combination" in one_each.headline
    assert "seeds: [0, 1, 2]" in one_each.detail
    overlapping = summarise_sweep("s", file(), trials({1: [10, 12, 11], 2: [11, 13, 12], 4: [1, 1.1, 0.9]}), None)
    assert overlapping.best is None
    assert "2 combinations may be" in overlapping.headline
    assert "not shown to be behind: batch_size 1" in overlapping.detail


def test_lower_is_better_for_memory_loss_and_price() -> None:
    results = [trial(b, s, 10.0 * b + s, measured_peak_bytes=2**30 * b + s) for b in (1, 2) for s in range(3)]
    assert summarise_sweep("s", file(objective="memory"), results, None).best == "batch_size 1"
    assert summarise_sweep("s", file(objective="money"), results, 2.0).best == "batch_size 2"


def test_a_frontier_names_the_largest_size_and_the_next() -> None:
    results = [
        trial(1, 0, 1.0),
        trial(2, 0, 1.0),
        trial(4, 0, 0, "out of device memory"),
        trial(8, 0, 0, "predicted not to fit"),
    ]
    strategy = {"kind": "frontier", "key": "train.batch_size"}
    summary = summarise_sweep("s", file(strategy=strategy), results, None)
    assert summary.headline == "2 fits, 4 does not (3 trials)"


def test_a_pareto_front_is_what_nothing_beats_in_everything() -> None:
    peaks = {1: 1.0, 2: 2.0, 4: 3.0, 8: 9.0}
    results = [
        trial(b, 0, speed, measured_peak_bytes=peaks[b]) for b, speed in ((1, 1.0), (2, 3.0), (4, 2.0), (8, 4.0))
    ]
    strategy = {"kind": "guided", "trials": 4, "objectives": ["speed", "memory"]}
    summary = summarise_sweep("s", file(strategy=strategy), results, None)
    assert summary.pareto == ("batch_size 1", "batch_size 2", "batch_size 8")


def test_the_table_has_every_documented_column_and_the_page_every_column(tmp_path: Path) -> None:
    results = [trial(1, 0, 8.0, step_s=0.5), trial(2, 0, 0.0, "out of device memory")]
    header, first, second = sweep_csv(results, tmp_path).splitlines()
    assert header.split(",") == ["trial", "train.batch_size", *COLUMNS, "run"]
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert (row["samples_per_s"], row["samples_per_s_per_device"], row["trial_s"]) == ("8.0", "4.0", "3.0")
    assert "out of device memory,no memory" in second
    page = (ROOT / "docs" / "sweeps.md").read_text()
    for column in ("run", *COLUMNS):
        assert f"| `{column}` |" in page


@pytest.mark.parametrize("kind", ["done", "crashed"])
def test_there_is_a_picture_for_each_axis_with_results(tmp_path: Path, kind: OutcomeKind) -> None:
    results = [trial(b, 0, float(b), kind, measured_peak_bytes=2.0**30) for b in (1, 2, 4)]
    summary = summarise_sweep("s", file(), results, None)
    paths = write_sweep_plots(summary.to_mapping(), file().options, tmp_path)
    assert [path.name for path in paths] == (["plot-batch_size.svg", "plot-batch_size.png"] if kind == "done" else [])
    if paths:
        text = paths[0].read_text()
        assert "train.batch_size" in text
        assert "samples/s" in text


def test_a_sweep_of_epochs_is_drawn_with_their_time(tmp_path: Path) -> None:
    """600 samples at 2, 3 and 6 samples/s take 5, 3.33 and 1.67 min."""
    results = [trial(1, seed, rate, epoch_s=600 / rate) for seed, rate in enumerate((2.0, 3.0, 6.0))]
    results += [trial(2, seed, 1.0, epoch_s=600.0) for seed in range(3)]
    summary = summarise_sweep("s", file(), results, None).to_mapping()
    found = _with_epoch(summary["combinations"][0])["numbers"]["epoch"]
    assert found["values"] == pytest.approx([300.0, 200.0, 100.0])
    assert found["value"] == pytest.approx(200.0)
    assert found["low"] < 200.0 < (found["high"] or float("inf"))
    svg = write_sweep_plots(summary, file().options, tmp_path)[0].read_text()
    assert "time of an epoch, min" in svg
    assert "Dots: runs. Bars: 95 % interval of the mean." in svg


def test_the_picture_of_a_frontier_shows_what_was_tried(tmp_path: Path) -> None:
    """Of 512 sizes four: their range is drawn, with numbers, and crosses in it."""
    axes = {"train.batch_size": {"from": 1, "to": 512, "step": 1}}
    strategy = {"kind": "frontier", "key": "train.batch_size"}
    of_frontier = file(axes=axes, strategy=strategy)
    results = [trial(60, 0, 1.0), trial(63, 0, 1.0), trial(64, 0, 0.0, "out of host memory")]
    results.append(trial(128, 0, 0.0, "predicted not to fit"))
    summary = summarise_sweep("s", of_frontier, results[::-1], None)
    assert [one.labels["train.batch_size"] for one in summary.combinations] == ["60", "63", "64", "128"]
    assert (summary.headline, summary.detail) == ("63 fits, 64 does not (3 trials)", "")
    svg = write_sweep_plots(summary.to_mapping(), of_frontier.options, tmp_path)[0].read_text()
    assert ">80<" in svg
    assert ">120<" in svg
    assert ">500<" not in svg
    assert "Crosses: no trial finished" in svg
