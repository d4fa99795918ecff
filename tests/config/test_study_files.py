"""Study files: what they hold, what is refused, and in which order their parts are run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.choices.experiment import Experiment
from foretune.config.study_files import StudyAsked, read_study
from foretune.core.errors import ExperimentErrors, UnknownName, UserError

EXPERIMENT = {"model": "flux.1-dev", "data": {"kind": "shapes"}, "train": {"steps": 7, "batch_size": 4}}


def written(tmp_path: Path, **changes: Any) -> Path:
    mapping = {
        "protocol": "equal-steps",
        "experiment": EXPERIMENT,
        "steps": 5,
        "configurations": {"one": {"parallel.threads": 1}, "two": {"parallel.threads": 2}},
        **changes,
    }
    path = tmp_path / "hardware.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in mapping.items() if value is not None}, sort_keys=False)
    )
    return path


def read(tmp_path: Path, **changes: Any) -> StudyAsked:
    return read_study(written(tmp_path, **changes))


def mistakes(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(ExperimentErrors) as raised:
        read(tmp_path, **changes)
    return str(raised.value)


def test_every_configuration_is_run_in_every_setting_with_every_seed_in_turns(tmp_path: Path) -> None:
    asked = read(tmp_path, settings={"small": {"train.batch_size": 1}, "large": {}}, seeds=[3, 4])
    assert [part.label for part in asked.parts] == [
        "one, small, seed 3", "two, small, seed 3", "one, large, seed 3", "two, large, seed 3",
        "two, large, seed 4", "one, large, seed 4", "two, small, seed 4", "one, small, seed 4",
    ]  # fmt: skip
    first = asked.parts[0]
    assert first.folder == Path("hardware/one/small/seed-3")
    experiment = first.asked.experiment
    assert (experiment.train.steps, experiment.train.seed, experiment.train.batch_size) == (5, 3, 1)
    assert (experiment.parallel.threads, asked.parts[1].asked.experiment.parallel.threads) == (1, 2)
    assert first.about()["order"] == [0, 0]


def test_time_takes_the_place_of_steps(tmp_path: Path) -> None:
    asked = read(tmp_path, protocol="equal-time", steps=None, seconds=9, clock="run")
    train = asked.parts[0].asked.experiment.train
    assert (train.steps, train.seconds, train.clock) == (None, 9.0, "run")
    assert asked.file.seeds == (0, 1, 2)


def test_combinations_are_configurations_with_names_of_folders(tmp_path: Path) -> None:
    vary = {"train.precision": ["fp32", "bf16"], "optimizer.lr": [1e-3, 1e-4]}
    asked = read(tmp_path, protocol="convergence", configurations=None, vary=vary, seeds=[0])
    names = [part.configuration for part in asked.parts]
    assert names == [
        "precision-fp32-lr-0.001", "precision-fp32-lr-0.0001", "precision-bf16-lr-0.001", "precision-bf16-lr-0.0001"
    ]  # fmt: skip
    assert asked.parts[3].asked.experiment.optimizer.lr == 1e-4


def test_the_experiment_may_be_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    assert read(tmp_path, experiment="mine.yaml").parts[0].asked.experiment.train.batch_size == 4


def test_all_mistakes_are_told_at_once_with_what_was_meant(tmp_path: Path) -> None:
    text = mistakes(tmp_path, protocol="equal-tine", sead=[1], seeds=[], evaluate={"metric": ["psnr"]})
    assert "has 4 mistakes" in text
    assert (
        "protocol: 'equal-tine' is not one of equal-time, equal-steps, convergence, speed. Did you mean 'equal-time'?"
        in text
    )
    assert "sead: unknown key. Did you mean 'seeds'?" in text
    assert "seeds: should not be empty." in text
    assert "evaluate.metric: unknown key. Did you mean 'evaluate.metrics'" in text or "Did you mean 'metrics'?" in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"protocol": "equal-time"}, "protocol equal-time needs seconds"),
        ({"protocol": "equal-time", "seconds": 5}, "protocol equal-time has no steps"),
        ({"steps": None}, "protocol equal-steps needs steps"),
        ({"clock": "run"}, "protocol equal-steps has no clock, which goes with equal-time"),
        ({"configurations": None}, "protocol equal-steps needs configurations"),
        ({"vary": {"optimizer.lr": [1]}}, "protocol equal-steps has no vary"),
        ({"protocol": "convergence", "configurations": None}, "protocol convergence needs vary"),
        ({"protocol": "speed", "configurations": None}, "protocol speed needs vary"),
        ({"protocol": "speed", "evaluate": {"metrics": ["psnr"]}}, "protocol speed trains too few steps to evaluate"),
        ({"synthetic_data": True}, "protocol equal-steps has no synthetic_data, which goes with speed"),
        ({"epoch_samples": 10}, "protocol equal-steps has no epoch_samples, which goes with speed"),
        ({"quick": {"configurations": ["three"]}}, "quick.configurations: there is no configuration three"),
        ({"prices": {"three": 0.8}}, "prices: there is no configuration three"),
        ({"prices": {"one": -1}}, "prices.one"),
        ({"seeds": [1, 1]}, "has a seed twice"),
        ({"configurations": {"a": {"train.seed": 1}}}, "configurations.a changes train.seed, which the study itself"),
        ({"configurations": {"../up": {}}}, "is not valid"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    assert sentence in mistakes(tmp_path, **changes)


def test_mistakes_of_experiments_say_where_they_are(tmp_path: Path) -> None:
    text = mistakes(tmp_path, configurations={"one": {}, "four": {"parallel.devices": 4, "parallel.thread": 2}})
    assert "parallel.thread: unknown key. Did you mean 'threads'? (in four/as-asked)" in text
    everywhere = mistakes(tmp_path, experiment={**EXPERIMENT, "model": "flux.1-dav"})
    assert "(in" not in everywhere


def test_a_study_may_use_several_devices_and_is_asked_only_about_what_runs_here(tmp_path: Path) -> None:
    configurations = {"cpu": {"parallel.device": "cpu"}, "four-gpus": {"parallel.devices": 4}}
    path = written(tmp_path, configurations=configurations)
    devices = {part.configuration: part.asked.experiment.parallel.devices for part in read_study(path).parts}
    assert devices == {"cpu": 1, "four-gpus": 4}

    def absent(experiment: Experiment) -> Iterator[str]:
        if experiment.parallel.devices > 1:
            yield "no such device here"

    with pytest.raises(ExperimentErrors, match=r"no such device here \(in four-gpus/as-asked\)"):
        read_study(path, checks=[absent])
    assert {part.configuration for part in read_study(path, only=["cpu"], checks=[absent]).parts} == {"cpu"}
    with pytest.raises(UnknownName, match="Did you mean 'four-gpus'"):
        read_study(path, only=["four-gpu"])


def test_a_file_that_is_not_there_is_told_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist") as raised:
        read_study(tmp_path / "none.yaml")
    example = str(raised.value).partition(":\n")[2]
    assert set(yaml.safe_load(example)) == {"protocol", "seconds", "experiment", "configurations"}


def test_mistakes_of_the_study_and_of_its_experiment_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "protocol: equal-tme\nconfigurations: {a: {}}\n"
        "experiment: {model: flux.1-dev, data: {kind: folder, path: ./nowhere}, train: {bath_size: 2}}\n"
    )
    with pytest.raises(ExperimentErrors) as raised:
        read_study(path)
    said = "\n".join(raised.value.problems)
    assert "protocol: 'equal-tme' is not one of" in said
    assert "experiment: train.bath_size: unknown key. Did you mean 'batch_size'?" in said
    assert "experiment: data.path: there is no folder ./nowhere" in said


def test_speed_leaves_nothing_but_the_steps(tmp_path: Path) -> None:
    experiment = {**EXPERIMENT, "validate": {"prompts": ["a"], "every": 1}, "save": {"every": 1}, "track": ["wandb"]}
    asked = read(tmp_path, protocol="speed", experiment=experiment, synthetic_data=True, epoch_samples=100, seeds=[4])
    one = asked.parts[0].asked.experiment
    assert (one.train.steps, one.train.seed, one.validation.prompts, one.validation.num_held_out) == (5, 4, (), 0)
    assert (one.save.every, one.track) == (None, ())
    about = asked.parts[1].about()
    assert (about["changes"], about["epoch_samples"]) == ({"parallel.threads": 2}, 100)


def test_quick_runs_what_its_section_says(tmp_path: Path) -> None:
    path = written(tmp_path, quick={"configurations": ["two"], "steps": 2, "seeds": [7]})
    asked = read_study(path, is_quick=True)
    assert [(part.configuration, part.seed, part.asked.experiment.train.steps) for part in asked.parts] == [
        ("two", 7, 2)
    ]
    assert asked.parts[0].folder == Path("hardware-quick/two/as-asked/seed-7")
    by_default = read_study(written(tmp_path), is_quick=True)
    assert len(by_default.parts) == 4, "two seeds of every configuration"


def test_changes_from_outside_reach_every_experiment(tmp_path: Path) -> None:
    asked = read_study(written(tmp_path), changes={"model": "flux.1-schnell", "data.resolution": 64}, name="other")
    assert {part.asked.experiment.model for part in asked.parts} == {"flux.1-schnell"}
    assert {part.asked.experiment.data.resolution for part in asked.parts} == {64}
    assert asked.parts[0].folder.parts[0] == "other"
