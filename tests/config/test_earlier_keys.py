"""Keys of earlier versions in files, overrides, studies and run directories."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.api.start import overrides_of
from foretune.choices.earlier_keys import RENAMED_KEYS
from foretune.config import Asked, read_experiment
from foretune.config.overrides import apply_overrides
from foretune.config.reading import understand
from foretune.config.study_files import read_study
from foretune.core.errors import ExperimentErrors
from foretune.record.run_directory import RunDirectory
from tests.core.formats import frozen_file

BASE: dict[str, Any] = {
    "model": "flux.1-dev",
    "method": {"kind": "lora", "rank": 16},
    "data": {"kind": "shapes"},
    "train": {"steps": 10},
    "levers": {"gradient_checkpointing": 1},
}
SWAP_NOTE = "`levers.swapped_blocks` is now `levers.block_swap`."


def read(*overrides: str, **levers: Any) -> Asked:
    mapping = {**BASE, "levers": {**BASE["levers"], **levers}}
    return understand(apply_overrides(mapping, overrides), source="x.yaml")


def problems(*overrides: str, **levers: Any) -> tuple[str, ...]:
    with pytest.raises(ExperimentErrors) as caught:
        read(*overrides, **levers)
    return caught.value.problems


@pytest.mark.parametrize(
    ("old", "value"),
    [
        ("train.weights", "bf16"),
        ("levers.swapped_blocks", 3),
        ("levers.optimizer_on_host", True),
        ("levers.ema_on_host", True),
    ],
)
def test_an_old_key_means_its_current_one_and_a_note_says_so(old: str, value: Any, tmp_path: Path) -> None:
    (section, key), (_, current) = old.split("."), RENAMED_KEYS[old].split(".")
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({**BASE, section: {**BASE[section], key: value}}))
    in_file = read_experiment(path)
    path.write_text(yaml.safe_dump(BASE))
    on_command_line = read_experiment(path, [f"{old}={json.dumps(value)}"])
    from_python = read_experiment(path, overrides_of({old: value}))
    expected = read_experiment(path, [f"{RENAMED_KEYS[old]}={json.dumps(value)}"])
    assert getattr(getattr(expected.experiment, section), current) == value
    assert not any("is now" in warning for warning in expected.warnings)
    for asked in (in_file, on_command_line, from_python):
        assert asked.experiment == expected.experiment
        assert [warning for warning in asked.warnings if warning not in expected.warnings] == [
            f"`{old}` is now `{RENAMED_KEYS[old]}`."
        ]


def test_a_file_with_both_names_of_a_key_is_refused() -> None:
    assert problems(swapped_blocks=3, block_swap=3) == (
        "`levers.swapped_blocks` and `levers.block_swap` are the same key. Keep `levers.block_swap`.",
    )


def test_a_wrong_value_is_reported_beside_both_names() -> None:
    found = problems(swapped_blocks=3, block_swap=-1)
    assert len(found) == 2
    assert found[1] == "levers.block_swap: should be at least 0 (found -1)"


@pytest.mark.parametrize(("in_file", "override"), [("swapped_blocks", "block_swap"), ("block_swap", "swapped_blocks")])
def test_an_override_replaces_a_key_under_either_name(in_file: str, override: str) -> None:
    asked = read(f"levers.{override}=5", **{in_file: 3})
    assert asked.experiment.levers.block_swap == 5
    assert asked.as_asked["levers"] == {"gradient_checkpointing": 1, override: 5}
    assert asked.warnings == ((SWAP_NOTE,) if override == "swapped_blocks" else ())


def test_an_old_key_in_the_wrong_section_is_recognised() -> None:
    assert problems("optimizer.weights=bf16") == ("optimizer.weights: unknown key. Did you mean 'train.weight_dtype'?",)


def test_a_removed_key_has_no_effect_at_its_default_and_is_refused_otherwise() -> None:
    plain = read("quantize.denoiser=int8")
    asked = read("quantize.denoiser=int8", "quantize.derivative=lean")
    assert asked.experiment == plain.experiment
    assert asked.warnings == ("`quantize.derivative` is no longer a key and has no effect.", *plain.warnings)
    (problem,) = problems("quantize.denoiser=int8", "quantize.derivative=torchao")
    assert problem.startswith("quantize.derivative: torchao is no longer supported; ")
    assert problem.endswith(" Remove the key.")


def test_the_experiment_of_an_earlier_run_is_read_without_notes(tmp_path: Path) -> None:
    """It has every key, under the names of its version."""
    stored = json.loads(frozen_file("Experiment", 5).read_text(encoding="utf-8"))
    stored["levers"] |= {"swapped_blocks": 2, "gradient_checkpointing": 1.0}
    run = RunDirectory.create(tmp_path, "paintings")
    path = run.path / "experiment.yaml"
    path.write_text(yaml.safe_dump({"asked": {}, "resolved": stored, "effective": {}}))
    _, experiment, _ = run.read_experiment()
    assert experiment.levers.block_swap == 2
    again = read_experiment(path)
    assert again.experiment == experiment
    assert not any("is now" in warning for warning in again.warnings)
    for key in ("levers.block_swap", "levers.swapped_blocks"):
        assert read_experiment(path, [f"{key}=4"]).experiment.levers.block_swap == 4


def test_old_keys_in_study_files(tmp_path: Path) -> None:
    def written(**changes: Any) -> Path:
        study = {"protocol": "equal-steps", "steps": 5, "seeds": [0], "experiment": BASE, **changes}
        path = tmp_path / "swap.yaml"
        path.write_text(yaml.safe_dump(study, sort_keys=False))
        return path

    changes = {"few": {"levers.swapped_blocks": 2}, "many": {"levers.block_swap": 20}}
    found = read_study(written(configurations=changes, settings={"some": {"levers.swapped_blocks": 9}}))
    assert [part.asked.experiment.levers.block_swap for part in found.parts] == [2, 20]
    assert found.warnings == (SWAP_NOTE,)
    varied = written(protocol="convergence", vary={"levers.swapped_blocks": [0, 4]})
    assert [(part.configuration, part.asked.experiment.levers.block_swap) for part in read_study(varied).parts] == [
        ("swapped_blocks-0", 0),
        ("swapped_blocks-4", 4),
    ]
    with pytest.raises(ExperimentErrors, match=r"configurations\.a: `levers\.swapped_blocks` and `levers\.block_swap`"):
        read_study(written(configurations={"a": {"levers.swapped_blocks": 2, "levers.block_swap": 2}}))
