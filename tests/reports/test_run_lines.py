"""The end of a run in a few lines."""

from pathlib import Path

from foretune.core.values import Plan, RunRecord
from foretune.record.run_directory import RunDirectory
from foretune.reports.terminal.run import measurements
from tests.reports.whole_runs import whole_run

NOTE = "tiny: its text encoders and autoencoder are not in the catalogue"


def record_of(path: Path) -> tuple[RunRecord, Plan]:
    run = RunDirectory.open(whole_run(path))
    record, plan = run.read_record(), run.read_plan()
    assert record is not None
    assert plan is not None
    return record, plan


def test_a_held_out_loss_that_began_at_zero_has_no_share(tmp_path: Path) -> None:
    record, _ = record_of(tmp_path / "run")
    measured = record.measured.model_copy(update={"held_out_losses": ((0, 0.0), (60, 0.5))})
    lines = measurements(record.model_copy(update={"measured": measured}), None)
    assert "Held-out loss 0.0000 (step 0) to 0.5000 (step 60)" in lines


def test_an_estimate_says_what_it_does_not_count(tmp_path: Path) -> None:
    record, plan = record_of(tmp_path / "run")
    (whole,) = [line for line in measurements(record.model_copy(update={"plan": plan}), None) if "Memory" in line]
    assert whole.endswith("% off")
    (line,) = [
        line
        for line in measurements(record.model_copy(update={"plan": plan.model_copy(update={"notes": (NOTE,)})}), None)
        if "Memory" in line
    ]
    assert line == f"{whole}; it does not count: {NOTE}"
