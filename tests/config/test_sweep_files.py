"""Sweep files: axes, conditions, overrides in Hydra's form, and every mistake at once."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.choices.sweep import SweepFile, axis_options, value_label
from foretune.config.sweep_files import check_sweep, load_sweep, shortened, sweep_name
from foretune.core.errors import ExperimentErrors, UserError
from foretune.sweeps.presets import SWEEP_PRESETS
from tests.sweeps.sweeps_of_tests import EXPERIMENT, asked, written


def values(given: Any, axis: str = "train.batch_size") -> list[Any]:
    return [option.value for option in axis_options(axis, given)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, 4, 8], [1, 4, 8]),
        ({"from": 1, "to": 4, "step": 1}, [1, 2, 3, 4]),
        ({"from": 1, "to": 6, "step": 2}, [1, 3, 5]),
        ({"from": 1, "to": 64, "factor": 4}, [1, 4, 16, 64]),
        ({"from": 1e-6, "to": 1e-4, "num": 3, "scale": "log"}, [1e-6, 1e-5, 1e-4]),
        ({"from": 0, "to": 1, "num": 3}, [0, 0.5, 1]),
    ],
)
def test_an_axis_is_a_list_or_a_range(given: Any, expected: list[Any]) -> None:
    assert values(given) == expected
    assert [type(value) for value in values(given)] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "has no values"),
        (4, r"should be a list: \[4\]"),
        ([1, 1], "has 1 twice"),
        ({"from": 1, "to": 4}, "exactly one of step, factor and num"),
        ({"from": 4, "to": 1, "step": 1}, "goes down from 4 to 1"),
        ({"from": 0, "to": 4, "factor": 2}, "numbers above 0"),
        ({"from": 0, "to": 1e9, "step": 1}, "more than 10000 values"),
        ({"from": 1, "to": 4, "stepp": 1}, "Did you mean 'step'"),
    ],
)
def test_what_is_wrong_with_an_axis_is_said(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        axis_options("train.batch_size", given)


def test_a_name_of_ones_own_needs_named_settings() -> None:
    options = axis_options("method", {"full": {"method.kind": "full"}, "r4": {"method.kind": "lora", "method.rank": 4}})
    assert [(option.label, option.changes) for option in options][1] == (
        "r4",
        {"method.kind": "lora", "method.rank": 4},
    )
    with pytest.raises(ValueError, match="give named settings"):
        axis_options("method", ["full", "lora"])


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ({"train.batch_size": "> 1"}, [(1, "fp32"), (1, "bf16")]),
        ({"train.batch_size": ">= 2", "train.precision": "fp32"}, [(1, "fp32"), (1, "bf16"), (2, "bf16"), (4, "bf16")]),
        ({"train.batch_size": [1, 4]}, [(2, "fp32"), (2, "bf16")]),
        ({"train.precision": "!= bf16"}, [(1, "bf16"), (2, "bf16"), (4, "bf16")]),
        ({"train.batch_size": "< 4"}, [(4, "fp32"), (4, "bf16")]),
        ({"train.batch_size": "<= 2", "train.precision": "bf16"}, [(1, "fp32"), (2, "fp32"), (4, "fp32"), (4, "bf16")]),
    ],
)
def test_combinations_are_left_out_by_their_conditions(
    tmp_path: Path, exclude: dict[str, Any], left: list[tuple[int, str]]
) -> None:
    axes = {"train.batch_size": [1, 2, 4], "train.precision": ["fp32", "bf16"]}
    sweep = asked(tmp_path, axes=axes, exclude=[exclude])
    assert [tuple(option.value for option in point.values()) for point in sweep.points()] == left


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    wrong = {
        "measur": "speed",
        "axes": {"train.batch_size": []},
        "exclude": [{"train.batchsize": 1}],
        "strategy": {"kind": "frontier", "key": "train.batch_sise"},
        "experiment": {**EXPERIMENT, "methd": {}},
    }
    with pytest.raises(ExperimentErrors) as caught:
        load_sweep(written(tmp_path, **wrong))
    text = str(caught.value)
    assert "measur: unknown key. Did you mean 'measure'?" in text
    assert "experiment: methd: unknown key. Did you mean 'method'?" in text
    with pytest.raises(ExperimentErrors) as caught:
        load_sweep(written(tmp_path, **{key: value for key, value in wrong.items() if key != "measur"}))
    text = str(caught.value)
    assert "axes.train.batch_size has no values" in text
    assert "exclude.0.train.batchsize is not an axis. Did you mean 'train.batch_size'?" in text
    assert "strategy.key is not an axis. Did you mean 'train.batch_size'?" in text


def test_a_wrong_value_is_a_mistake_and_a_wrong_combination_is_not(tmp_path: Path) -> None:
    with pytest.raises(ExperimentErrors) as caught:
        asked(tmp_path, axes={"train.batch_size": [0, 1], "train.precision": ["fp32", "bf17"], "method.ranc": [1, 2]})
    assert len(caught.value.problems) == 3
    sweep = asked(tmp_path, axes={"method.kind": ["full", "lora"], "method.rank": [1, 2]})
    trials = [sweep.trial(point, 0) for point in sweep.points()]
    assert [trial.refusal is None for trial in trials] == [False, False, True, True]
    with pytest.raises(ExperimentErrors, match="goes with kind lora"):
        asked(tmp_path, axes={"method.kind": ["full"], "method.rank": [1, 2]})


def test_overrides_with_several_values_are_axes(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    overrides = ["train.batch_size=1,4", "train.precision=bf16,fp32", "train.steps=7", "validate.prompts=[a, b]"]
    sweep = check_sweep(load_sweep(path, overrides), path, name="x")
    assert sweep.file.axes == {"train.batch_size": [1, 4], "train.precision": ["bf16", "fp32"]}
    (trial, *_) = [sweep.trial(point, 3) for point in sweep.points()]
    assert trial.asked is not None
    experiment = trial.asked.experiment
    assert (experiment.train.steps, experiment.train.seed, experiment.validation.prompts) == (7, 3, ("a", "b"))
    with pytest.raises(UserError, match="no key has several values"):
        load_sweep(path, ["train.steps=7"])


def test_overrides_change_a_sweep_file(tmp_path: Path) -> None:
    sweep = asked(tmp_path, "train.batch_size=8,16", "train.steps=9")
    assert [option.value for option in sweep.file.options["train.batch_size"]] == [8, 16]
    assert sweep.base["train"]["steps"] == 9


def test_a_trial_has_a_name_that_depends_on_what_is_run_and_where(tmp_path: Path) -> None:
    def content(environment: str = "here", seed: int = 0, **changes: Any) -> str:
        sweep = asked(tmp_path, **changes)
        trial = sweep.trial(next(sweep.points()), seed, environment)
        assert trial.name.startswith(f"batch_size-1-precision-fp32-seed-{seed}-")
        assert trial.name.endswith(trial.content)
        return trial.content

    same = content()
    assert content() == same
    others = [
        content("there"),
        content(seed=1),
        content(measure="speed"),
        content(limits={"host_gib": 1}),
        content(experiment={**EXPERIMENT, "train": {"steps": 5}}),
        content(evaluate={"metrics": ["psnr"]}),
    ]
    assert len({same, *others}) == 7
    assert content(limits={"seconds": 5}) == same, "another patience makes no other trial"


def test_a_preset_and_its_quick_form_are_valid(tmp_path: Path) -> None:
    assert len(SWEEP_PRESETS) == 8
    for name, path in SWEEP_PRESETS.items():
        file = load_sweep(path)
        quick = shortened(file)
        assert quick.num_combinations() <= file.num_combinations()
        assert (quick.steps or 0) <= (file.steps or 0)
        assert sweep_name(quick, path, is_quick=True) == f"{name}-quick"
        for one in (file, quick):
            made = {"data.path": str(tmp_path)} if one.fixtures and one.fixtures.images else {}
            model = {"model": "flux.1-dev"} if one.fixtures and one.fixtures.model != "tiny-ddpm" else {}
            if one.fixtures and one.fixtures.model == "tiny-ddpm":
                model = {"model": "ddpm-cifar10-32"}
            assert list(check_sweep(one, path, name=name, changes={**made, **model}).points())


def test_a_resolved_sweep_is_a_sweep_file(tmp_path: Path) -> None:
    sweep = asked(
        tmp_path, axes={"train.batch_size": {"from": 1, "to": 4, "step": 1}}, strategy={"kind": "random", "trials": 2}
    )
    again = SweepFile.model_validate(sweep.to_mapping())
    assert again.axes == sweep.file.axes
    assert again.strategy == sweep.file.strategy


def test_what_the_command_line_says_holds_in_the_quick_form_too(tmp_path: Path) -> None:
    path, settings = SWEEP_PRESETS["precision"], {"seeds": [3, 4], "steps": 5}
    overrides = ("train.batch_size=2,3", "method.rank=8")
    quick = shortened(load_sweep(path, overrides, settings=settings), overrides, settings=settings)
    assert quick.axes == {"train.precision": ["fp32", "bf16"], "train.batch_size": [2, 3]}
    assert (quick.seeds, quick.steps) == ((3, 4), 5)
    assert isinstance(quick.experiment, dict)
    assert quick.experiment["method"]["rank"] == 8
    bf16 = ("train.precision=bf16",)
    devices = shortened(load_sweep(SWEEP_PRESETS["devices"], bf16), bf16).experiment
    assert isinstance(devices, dict)
    assert devices["train"]["precision"] == "bf16", "not the quick form's own"


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1e-6, "1e-6"),
        (5e-5, "5e-5"),
        (1e8, "1e8"),
        (1.5e-10, "1.5e-10"),
        (0.001, "0.001"),
        (True, "true"),
        (None, "none"),
    ],
)
def test_values_are_labelled_as_people_write_them(value: Any, label: str) -> None:
    assert value_label(value) == label
