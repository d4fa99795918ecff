"""Which runs are ranked against each other, and what their names mention."""

from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.run_data import gather
from foretune.analyse.run_index.run_row import row_of
from foretune.analyse.run_report import RunReport, run_report
from foretune.reports.run_question import task_title
from tests.analyse.made_runs import asked, make_repeats, make_run


def reported(folder: Path, *experiments: dict[str, Any], effective: dict[str, Any] | None = None) -> RunReport:
    """Three runs of each experiment, each a little slower than the one before it."""
    for number, sections in enumerate(experiments):
        experiment = asked(**sections)
        num_steps = experiment.train.steps or 20
        levels_s = [0.1 + 0.02 * number + 0.0005 * repeat for repeat in range(3)]
        make_repeats(folder / f"{number}", levels_s, num_steps, experiment=experiment, effective=effective)
    return run_report(gather([folder]), folder)


def labels(report: RunReport) -> list[str]:
    return [one.label for one in report.configurations]


def test_names_leave_out_validation_saving_profiling_and_tracking(tmp_path: Path) -> None:
    lora: dict[str, Any] = {"method": {"kind": "lora", "rank": 8}}
    other = {
        "method": {"kind": "lora", "rank": 16},
        "validate": {"prompts": ["a red circle"], "num_held_out": 8, "num_inference_steps": 3, "seed": 7, "every": 5},
        "save": {"every": 5, "keep": 1},
        "profile": {"at_step": 3},
        "track": ["tensorboard"],
    }
    assert labels(reported(tmp_path, lora, other)) == ["LoRA rank 8", "LoRA rank 16"]


def test_what_only_changes_how_a_run_is_watched_is_no_other_configuration(tmp_path: Path) -> None:
    shown = {"validate": {"prompts": ["a red circle"], "num_inference_steps": 3}, "save": {"every": 5}}
    report = reported(tmp_path, {}, shown)
    assert [len(one.runs) for one in report.configurations] == [6]


def test_a_profile_is_named_where_nothing_else_differs(tmp_path: Path) -> None:
    report = reported(tmp_path, {}, {"profile": {"at_step": 3}})
    assert labels(report) == ["LoRA rank 16 (not profiled)", "LoRA rank 16 (profiled)"]


def test_a_setting_that_follows_from_another_is_not_repeated(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        {"method": {"kind": "full"}, "optimizer": {"lr": 2e-4}},
        {"optimizer": {"lr": 2e-3}},
        {"optimizer": {"lr": 2e-3}, "quantize": {"denoiser": "int8"}},
    )
    assert labels(report) == ["LoRA rank 16", "LoRA rank 16, int8 base", "full fine-tuning"]
    assert [one.letter for one in report.configurations] == ["A", "B", "C"]


def test_a_setting_that_varies_by_itself_is_named(tmp_path: Path) -> None:
    report = reported(tmp_path, {"optimizer": {"lr": 1e-3}}, {"optimizer": {"lr": 2e-3}})
    assert labels(report) == ["LoRA rank 16, lr 0.001", "LoRA rank 16, lr 0.002"]


def test_trainings_of_different_lengths_are_not_ranked(tmp_path: Path) -> None:
    """The shorter one is far faster, and would win by time."""
    report = reported(
        tmp_path,
        {"method": {"kind": "full"}, "train": {"steps": 60}},
        {"train": {"steps": 90}},
        {"quantize": {"denoiser": "int8"}, "train": {"steps": 90}},
    )
    groups = [(task.group.length, [one.label for one in task.configurations]) for task in report.tasks]
    assert groups == [("90 steps", ["LoRA rank 16", "LoRA rank 16, int8 base"]), ("60 steps", ["full fine-tuning"])]
    assert report.tasks[0].recommendation.headline == "Winner: A (LoRA rank 16)"
    assert not report.tasks[1].recommendation.is_best_shown


def test_equal_samples_are_equal_lengths(tmp_path: Path) -> None:
    """Twice the batch, half the steps."""
    small, large = {"train": {"steps": 40, "batch_size": 2}}, {"train": {"steps": 20, "batch_size": 4}}
    (task,) = reported(tmp_path, small, large).tasks
    assert task.group.length == "80 samples"
    assert [one.label for one in task.configurations] == ["LoRA rank 16, batch 2", "LoRA rank 16, batch 4"]


def test_lengths_that_are_all_that_differs_are_what_is_compared(tmp_path: Path) -> None:
    (task,) = reported(tmp_path, {"train": {"steps": 10}}, {"train": {"steps": 40}}).tasks
    assert [one.label for one in task.configurations] == ["LoRA rank 16, 10 steps", "LoRA rank 16, 40 steps"]


def test_equal_time_is_an_equal_length_whatever_the_steps(tmp_path: Path) -> None:
    for kind, num_steps in (("full", 20), ("lora", 35)):
        method = {"kind": "full"} if kind == "full" else {"kind": "lora", "rank": 4}
        experiment = asked(method=method, train={"steps": None, "seconds": 2})
        make_run(tmp_path / kind, [2 / num_steps] * num_steps, experiment=experiment)
    (task,) = run_report(gather([tmp_path]), tmp_path).tasks
    assert task.group.length == "2 s"


def test_a_profile_is_no_training(tmp_path: Path) -> None:
    """Its twelve steps are neither ranked with trainings nor a repeat of one."""
    make_repeats(tmp_path / "trained", [0.1, 0.1, 0.1], 60, experiment=asked(train={"steps": 60}))
    make_run(tmp_path / "profiled", [0.1] * 60, experiment=asked(train={"steps": 60}), effective={"is_profile": True})
    report = run_report(gather([tmp_path]), tmp_path)
    assert [(task.group.kind, len(task.configurations[0].runs)) for task in report.tasks] == [
        ("training", 3),
        ("profile", 1),
    ]
    assert [measure.name for measure in report.tasks[1].measures] == ["speed", "peak memory"]
    assert task_title(report.tasks[1]).startswith("Profile: ")
    assert [row_of(run.path)["kind"] for run in gather([tmp_path])].count("profile") == 1


@pytest.mark.parametrize("is_synthetic", [True, False])
def test_benches_are_ranked_apart_by_speed_and_memory(is_synthetic: bool, tmp_path: Path) -> None:
    reported(tmp_path / "trainings", {})
    report = reported(tmp_path / "benches", {"method": {"kind": "full"}}, {}, effective={"is_synthetic": is_synthetic})
    assert [task.group.kind for task in report.tasks] == ["bench"]
    both = run_report(gather([tmp_path]), tmp_path)
    training, bench = both.tasks
    assert (training.group.kind, bench.group.kind) == ("training", "bench")
    assert [measure.name for measure in bench.measures] == ["speed", "peak memory"]
    assert bench.recommendation.decided_by == "speed"
    assert bench.recommendation.headline.startswith("Winner: C (full fine-tuning")
