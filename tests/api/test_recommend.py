"""`ft.recommend`: the answer, its words, and the experiment file."""

from pathlib import Path

import pytest

import foretune as ft
from foretune.config.reading import read_experiment
from foretune.core.errors import UserError


def test_the_file_is_the_recommended_experiment(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    found = ft.recommend(
        "sd3-medium", {"method.rank": 8}, on="l4,rtx-4090", deadline="2d", prices={"l4": 0.01}, file=file
    )
    assert found.plan.device == "l4", "hardly any device is cheaper"
    assert found.plan.verdict == "fits"
    assert found.experiment_text() == file.read_text(encoding="utf-8")
    experiment = read_experiment(file, only_planned=True).experiment
    assert (experiment.model, getattr(experiment.method, "rank", None)) == ("sd3-medium", 8)
    for key, value in found.settings.items():
        section, name = key.split(".")
        assert getattr(getattr(experiment, section), name) == value
    (again,) = ft.plan(file, on="l4")
    assert (again.verdict, again.process_bytes) == ("fits", found.plan.process_bytes)
    assert again.time == found.plan.time
    with pytest.raises(UserError, match="exists already"):
        ft.recommend("sd3-medium", on="l4", file=file)


def test_the_words_are_those_of_the_answer() -> None:
    found = ft.recommend("sd3-medium", goal="fastest", on=["l4", "h100-sxm"], prices=["h100-sxm=2.49"])
    question, answer, settings, why, *_ = text = str(found).splitlines()
    assert question.startswith("sd3-medium: LoRA rank 16, bf16, 1024 x 1024 px, 4 samples per optimizer step")
    assert "searched 2 kinds of device, 1 to 4 of each." in question
    assert answer.startswith("Fastest: 4 x h100-sxm, ")
    assert "parallel.devices=4" in settings
    assert "Runner-up on another device: 4 x l4 with " in why
    assert any(line.startswith("4 devices, or 4 runs on one each?") for line in text)
    assert any(line.startswith("Not searched: 8 devices.") for line in text)
    assert any(line.startswith("Step time ") for line in text)
    assert any("at $2.49/h (as given)" in line for line in text)
    assert any(line.startswith("Assumed: the device draws 80 %") for line in text)
    assert any("connected by NVLink4" in line for line in text)
    mapping = found.to_mapping()
    assert (mapping["devices"], mapping["skipped_devices"], mapping["samples_per_step"]) == ([1, 2, 4], [8], 4)
    assert mapping["run_or_runs"]["num_devices"] == 4
    assert mapping["best"]["plan"]["device"] == "h100-sxm"
    assert mapping["num_options"] >= mapping["num_timed"] >= mapping["num_replayed"] > 0


def test_one_device_is_compared_with_two_of_it() -> None:
    found = ft.recommend("sd3-medium", on="l4", goal="cheapest")
    assert found.plan.world_size == 1
    answer = found.answer.run_or_runs
    assert answer is not None
    assert answer.num_devices == 2
    assert found.plan.cost is not None
    assert answer.single_s == found.plan.cost.total_s
    assert 1 < answer.speedup < 2
    only = ft.recommend("sd3-medium", on="l4", goal="cheapest", num_devices="1")
    assert only.answer.run_or_runs is None
    assert only.answer.counts == (1,)


def test_spot_needs_a_price_and_searches_where_there_is_one() -> None:
    with pytest.raises(UserError, match="--price l4="):
        ft.recommend("sd3-medium", on="l4,h100-sxm", spot=True)
    found = ft.recommend("sd3-medium", on="l4,h100-sxm", spot=True, prices={"l4": 0.1}, interruptions_per_day=6)
    assert found.plan.device == "l4"
    assert "on spot (expected)" in str(found)
    assert "save.every" in found.settings
    with pytest.raises(UserError, match="--price h100-sxm="):
        ft.plan("sd3-medium", on="l4,h100-sxm", spot=True, prices={"l4": 0.1})
