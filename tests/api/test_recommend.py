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
    first, *_ = text = str(found).splitlines()
    assert first.startswith("Fastest for sd3-medium: h100-sxm with ")
    assert "; runner-up l4 with " in first
    assert any(line.startswith("Step time ") for line in text)
    assert any("at $2.49/h (as given)" in line for line in text)
    assert any(line.startswith("Assumed: the device draws 80 %") for line in text)
    mapping = found.to_mapping()
    assert mapping["best"]["plan"]["device"] == "h100-sxm"
    assert mapping["num_options"] >= mapping["num_timed"] >= mapping["num_replayed"] > 0
