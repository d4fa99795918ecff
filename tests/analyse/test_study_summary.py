"""Studies summed up from their run directories alone: what was planted is found, and no more is claimed."""

import json
import shutil
from pathlib import Path

import pytest

from foretune.analyse.study_cells import (
    DATA_SHARE,
    HELD_OUT_LOSS,
    INFERENCE_SPEED,
    ITERATION_SPEED,
    PEAK_MEMORY,
    SAMPLE_RATE,
    START,
    STEP_TIME,
    STEPS_MADE,
    TRAINING_SPEED,
)
from foretune.analyse.study_summary import StudySummary, stored_studies, summarise_study
from foretune.core.errors import UserError
from foretune.record.run_directory import RunDirectory
from tests.analyse.made_studies import make_part, make_speed_part

WOBBLE = (0.0, 0.004, -0.003)


def equal_time(studies: Path, *, better_by: float = 0.1, seeds: int = 3, wobble: float = 1.0) -> StudySummary:
    """Two configurations, the second of which makes twice the steps and reaches a lower loss."""
    for seed in range(seeds):
        for place, (name, num_steps, loss) in enumerate((("slow", 60, 0.8), ("fast", 120, 0.8 - better_by))):
            held_out = {0: 1.0, num_steps: loss + wobble * WOBBLE[seed] * (1 + place)}
            make_part(studies, name, seed, order=(0, place), num_steps=num_steps, held_out=held_out, counted_s=2.0)
    return summarise_study(studies / "hardware")


def sentences(summary: StudySummary) -> str:
    return " ".join(finding.sentence for finding in summary.findings)


def test_the_quality_at_equal_time_is_compared_seed_by_seed(tmp_path: Path) -> None:
    summary = equal_time(tmp_path)
    assert [cell.configuration for cell in summary.cells] == ["slow", "fast"], "in the order of the file"
    (loss,) = [one for one in summary.comparisons if one.title == HELD_OUT_LOSS]
    assert loss.value == pytest.approx(-0.1, abs=0.001)
    assert loss.low is not None
    assert loss.high is not None
    assert loss.low < -0.1 < loss.high < 0
    assert loss.answer == "better"
    (steps,) = [one for one in summary.comparisons if one.title == STEPS_MADE]
    assert steps.value == pytest.approx(2.0)
    assert "fast is better by 0.1" in sentences(summary)
    assert "fast made 2.00 times as many steps as slow" in sentences(summary)
    assert "Counted is the time inside optimizer steps, waiting for data included" in summary.held_equal
    assert "(3.0 to 3.0 s on average)" in summary.held_equal
    assert summary.cells[1].numbers["samples seen"].value == 240.0
    assert summary.warnings == ()


def test_no_difference_is_claimed_where_none_is_shown(tmp_path: Path) -> None:
    summary = equal_time(tmp_path, better_by=0.001)
    (loss,) = [one for one in summary.comparisons if one.title == HELD_OUT_LOSS]
    assert loss.answer == "no difference shown"
    assert "no difference shown" in sentences(summary)
    assert "is better" not in sentences(summary)


def test_an_interval_that_holds_more_is_not_decided(tmp_path: Path) -> None:
    summary = equal_time(tmp_path, better_by=0.001, wobble=20)
    (loss,) = [one for one in summary.comparisons if one.title == HELD_OUT_LOSS]
    assert loss.answer == "inconclusive"
    assert "not decided" in sentences(summary)
    assert "no difference shown" not in sentences(summary)


@pytest.mark.parametrize(("seeds", "label"), [(1, "one seed;"), (2, "two seeds;")])
def test_fewer_than_three_seeds_are_labelled(seeds: int, label: str, tmp_path: Path) -> None:
    summary = equal_time(tmp_path, seeds=seeds)
    assert {one.answer for one in summary.comparisons} == {"not a claim"}
    assert all(finding.caveat == "Not a claim: it takes 3 seeds." for finding in summary.findings)
    assert any(label in warning for warning in summary.warnings)


def test_speeds_at_equal_steps_are_ratios_with_intervals(tmp_path: Path) -> None:
    for seed in range(3):
        for place, (name, step_s) in enumerate((("one", 0.2), ("two", 0.1))):
            drift = 1 + 0.1 * seed  # of the machine, which meets both alike
            make_part(
                tmp_path, name, seed, protocol="equal-steps", order=(0, place), step_s=step_s * drift, pass_s=step_s / 2
            )
    summary = summarise_study(tmp_path / "hardware")
    ratios = {one.title: one for one in summary.comparisons}
    assert ratios[TRAINING_SPEED].value == pytest.approx(2.0)
    assert ratios[TRAINING_SPEED].answer == "better"
    assert ratios[TRAINING_SPEED].high == pytest.approx(2.0), "drift that both met is no noise of the ratio"
    assert summary.cells[0].numbers[INFERENCE_SPEED].value == pytest.approx(10.0), "the first step warms up"
    assert "two trains 2.00 times as fast as one" in sentences(summary)
    assert "two denoises a batch of 256 in fp32 2.00 times as fast as one" in sentences(summary)
    inference = "Inference is denoising steps/s of a batch of 256 in fp32."
    assert summary.held_equal == f"60 optimizer steps for every run. {inference}"


def test_training_on_several_devices_is_compared_in_samples(tmp_path: Path) -> None:
    """An iteration on two devices trains twice the samples, so fewer iterations/s can be faster."""
    for seed in range(3):
        for place, (name, num_devices, step_s) in enumerate((("one", 1, 0.1), ("two", 2, 0.125))):
            make_part(
                tmp_path,
                name,
                seed,
                protocol="equal-steps",
                order=(0, place),
                step_s=step_s * (1 + 0.1 * seed),
                num_devices=num_devices,
            )
    summary = summarise_study(tmp_path / "hardware")
    (speed,) = [one for one in summary.comparisons if one.title == TRAINING_SPEED]
    assert speed.value == pytest.approx(1.6)
    assert speed.answer == "better"
    one, two = (cell.numbers for cell in summary.cells)
    assert two[ITERATION_SPEED].value == pytest.approx(0.8 * one[ITERATION_SPEED].value)


def test_a_batch_that_did_not_fit_is_said_and_not_compared(tmp_path: Path) -> None:
    for seed in range(3):
        make_part(tmp_path, "big", seed, protocol="equal-steps", pass_s=0.1)
        make_part(
            tmp_path,
            "small",
            seed,
            protocol="equal-steps",
            order=(0, 1),
            pass_s=0.1,
            batch_size=64,
            did_not_fit=[256, 128],
        )
    summary = summarise_study(tmp_path / "hardware")
    assert INFERENCE_SPEED not in {one.title for one in summary.comparisons}
    assert any("small: a batch of 256 did not fit: inference, steps/s with 64" in one for one in summary.warnings)


def test_settings_are_apart_and_unfinished_runs_are_reported(tmp_path: Path) -> None:
    for number, setting in enumerate(("smallest", "largest")):
        for seed in range(3):
            for place, name in enumerate(("one", "two")):
                failed = (setting, name, seed) == ("largest", "two", 2)
                make_part(
                    tmp_path, name, seed, setting=setting, order=(number, place), held_out={20: 0.5 + WOBBLE[seed]},
                    counted_s=2.0, status="out of memory" if failed else "finished",
                )  # fmt: skip
    summary = summarise_study(tmp_path / "hardware")
    assert [(cell.setting, cell.configuration, len(cell.parts)) for cell in summary.cells] == [
        ("smallest", "one", 3), ("smallest", "two", 3), ("largest", "one", 3), ("largest", "two", 2)
    ]  # fmt: skip
    assert "two, largest: not counted, seed 2: out of memory" in summary.warnings
    assert {one.setting: one.num_pairs for one in summary.comparisons} == {"smallest": 3, "largest": 2}


def test_parts_of_two_machines_are_merged_by_copying(tmp_path: Path) -> None:
    for seed in range(3):
        make_part(tmp_path / "laptop", "one", seed, held_out={20: 0.5}, counted_s=2.0)
        make_part(tmp_path / "server", "two", seed, order=(0, 1), held_out={20: 0.4}, environment={"cpu": "other"})
    shutil.copytree(tmp_path / "laptop", tmp_path / "both")
    shutil.copytree(tmp_path / "server", tmp_path / "both", dirs_exist_ok=True)
    summary = summarise_study(tmp_path / "both" / "hardware")
    assert [cell.configuration for cell in summary.cells] == ["one", "two"]
    again = summarise_study(tmp_path / "both" / "hardware")
    assert json.dumps(again.to_mapping()) == json.dumps(summary.to_mapping())
    assert str(tmp_path) not in json.dumps(summary.to_mapping())


def test_a_configuration_from_unlike_machines_is_warned_of(tmp_path: Path) -> None:
    for seed in range(3):
        make_part(tmp_path, "one", seed, held_out={20: 0.5}, environment={"cpu": f"number {seed % 2}"})
    summary = summarise_study(tmp_path / "hardware")
    assert any("2 unlike environments" in warning for warning in summary.warnings)


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    make_part(tmp_path, "one", 0, name="first")
    make_part(tmp_path, "one", 0, name="second")
    with pytest.raises(UserError, match="parts of 2 studies"):
        summarise_study(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="There is no run"):
        summarise_study(tmp_path / "empty")


def speeds(folder: Path, **step_times_s: list[float]) -> StudySummary:
    """Three seeds of each configuration; the machine drifts by a tenth from seed to seed."""
    for seed in range(3):
        for order, (name, times_s) in enumerate(step_times_s.items()):
            make_speed_part(folder, name, seed, [time_s * (1 + 0.1 * seed) for time_s in times_s], order=order)
    return summarise_study(folder / "speeds")


def test_speeds_of_steps_alone_are_ratios_of_samples_a_second(tmp_path: Path) -> None:
    for seed in range(3):
        slow, fast = [0.4 * (1 + 0.1 * seed)] * 20, [0.2 * (1 + 0.1 * seed)] * 20
        make_speed_part(tmp_path, "full", seed, slow, peak_mib=1000 + seed, method={"kind": "full"})
        make_speed_part(tmp_path, "lora", seed, fast, order=1, peak_mib=700 + seed, train={"batch_size": 4})
    summary = summarise_study(tmp_path / "speeds")
    assert [axis.title for axis in summary.axes] == [SAMPLE_RATE, STEP_TIME, PEAK_MEMORY]
    rate = next(one for one in summary.comparisons if one.title == SAMPLE_RATE)
    assert rate.value == pytest.approx(4.0), "half the time for twice the samples"
    assert (rate.answer, rate.kind) == ("better", "ratio")
    assert summary.cells[0].numbers[STEP_TIME].value == pytest.approx(440.0)
    assert "lora trains 4.00 times as many samples/s as full (equal in all), 3 seeds." in sentences(summary)
    assert "lora needs 701.0 MiB (698.5 to 703.5 MiB) at its peak" in sentences(summary)
    assert "full 1,001.0 MiB (998.5 to 1,003.5 MiB): 300 MiB (equal in all) less, 3 seeds." in sentences(summary)
    assert (
        summary.held_equal == "20 optimizer steps for every run. Validation and saving are left out, on synthetic data."
    )
    assert summary.warnings == ()


def test_the_time_for_an_epoch_and_the_share_of_data_stand_beside_the_speed(tmp_path: Path) -> None:
    for seed in range(3):
        for order, (name, step_s, share) in enumerate((("none", 0.4, 0.75), ("one", 0.1, 0.0625))):
            path = make_speed_part(tmp_path, name, seed, [step_s] * 20, order=order, data_share=share)
            experiment = RunDirectory(path).read_experiment()
            about = {**experiment[2]["study"], "epoch_samples": 1200}
            RunDirectory(path).write_experiment(*experiment[:2], {**experiment[2], "study": about})
    summary = summarise_study(tmp_path / "speeds")
    titles = [axis.title for axis in summary.axes]
    assert titles == [SAMPLE_RATE, "time for 1,200 samples, min", STEP_TIME, PEAK_MEMORY, DATA_SHARE]
    values = [[cell.numbers[title].value for title in (titles[1], DATA_SHARE)] for cell in summary.cells]
    assert values == [pytest.approx([4.0, 0.75]), pytest.approx([1.0, 0.0625])]
    assert "synthetic" not in summary.held_equal


def test_compiling_pays_off_after_the_step_that_was_planted(tmp_path: Path) -> None:
    for seed in range(3):
        make_speed_part(tmp_path, "eager", seed, [0.2] * 20)
        make_speed_part(
            tmp_path, "compiled", seed, [10.1, *[0.1] * 19], order=1, levers={"compile": "regional"}
        )  # fmt: skip
    summary = summarise_study(tmp_path / "speeds")
    assert summary.cells[1].numbers[START].value == pytest.approx(10.0)
    assert START in [axis.title for axis in summary.axes]
    assert "compiled compiles for 10.0 s at the start; break-even: after 100 steps (100 to 100)." in sentences(summary)
    assert "compiled trains 2.00 times as many samples/s as eager" in sentences(summary)


def test_runs_that_never_come_to_rest_have_no_speed(tmp_path: Path) -> None:
    rising = [0.05 * (1 + 0.02 * step) for step in range(60)]
    summary = speeds(tmp_path, steady=[0.4] * 40, rising=rising, bursts=[0.1, 0.1, 0.1, 0.9] * 10)
    assert SAMPLE_RATE not in summary.cells[1].numbers
    assert [one.other for one in summary.comparisons if one.title == SAMPLE_RATE] == ["bursts"]
    assert "rising trains" not in sentences(summary)
    assert any(warning.startswith("rising: ") for warning in summary.warnings)
    assert summary.cells[2].numbers[STEP_TIME].value == pytest.approx(330.0), "long steps count with their length"


def test_a_speed_is_claimed_only_where_it_was_shown(tmp_path: Path) -> None:
    for seed, factor in enumerate((1.0, 3.0, 0.7)):
        make_speed_part(tmp_path, "one", seed, [0.2] * 20)
        make_speed_part(tmp_path, "two", seed, [0.2 * factor] * 20, order=1)
    assert "not decided: two trains" in sentences(summarise_study(tmp_path / "speeds"))


def test_a_study_of_an_earlier_release_keeps_its_findings(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "batch-size" / "20260101-000000-abcd"
    folder.mkdir(parents=True)
    stored = {"format": "Study", "format_version": 1, "title": "Training time", "findings": ["batch 4 is faster"]}
    (folder / "study.json").write_text(json.dumps(stored))
    assert [one.sentence for one in stored_studies([tmp_path / "studies"]).findings] == [
        "Training time: batch 4 is faster."
    ]
    (folder / "study.json").write_text(json.dumps({"format": "Study"}))
    (finding,) = stored_studies([tmp_path / "studies"]).findings
    assert "cannot be read" in finding.sentence


def test_a_loss_that_training_and_evaluation_measured_is_one_thing(tmp_path: Path) -> None:
    for place, name in enumerate(("slow", "fast")):
        held_out = {0: 1.0, 60: 0.5}
        make_part(tmp_path, name, 0, order=(0, place), held_out=held_out, scores={HELD_OUT_LOSS: 0.5, "psnr": 20.0})
    summary = summarise_study(tmp_path / "hardware")
    titles = [axis.title for axis in summary.axes]
    assert titles.count(HELD_OUT_LOSS) == 1
    assert "psnr" in titles
    assert sentences(summary).count("held-out loss") == 1
