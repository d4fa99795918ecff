"""Keys of earlier versions: old files mean what they meant, and keep their hashes."""

from typing import Any

import pytest

from foretune.choices.earlier_keys import (
    REMOVED_KEYS,
    RENAMED_KEYS,
    as_hashed,
    mixed_keys,
    other_name,
    with_current_keys,
)
from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm
from foretune.config.places import fields_by_key, sections_in
from foretune.core.values import WrongFormat
from foretune.trace.shipped import is_shipped
from tests.choices.test_experiment import BASE, FINGERPRINT, experiment

OLD: dict[str, Any] = {
    "train": {"steps": 10, "weights": "bf16"},
    "levers": {"swapped_blocks": 3, "optimizer_on_host": True, "ema_on_host": True},
}
CURRENT: dict[str, Any] = {
    "train": {"steps": 10, "weight_dtype": "bf16"},
    "levers": {"block_swap": 3, "optimizer_offload": True, "ema_offload": True},
}


def stored(version: int, **sections: Any) -> dict[str, Any]:
    body = {"model": "flux.1-dev", "data": {"kind": "folder", "path": "./paintings"}, **sections}
    return {"format": "Experiment", "format_version": version, **body}


def test_every_current_name_is_a_key_and_no_old_one_is() -> None:
    known = {
        f"{name}.{key}"
        for name, field in fields_by_key(Experiment).items()
        for section in sections_in(field.annotation)
        for key in fields_by_key(section)
    }
    assert set(RENAMED_KEYS.values()) <= known
    assert known.isdisjoint({*RENAMED_KEYS, *REMOVED_KEYS})
    assert all(old.partition(".")[0] == current.partition(".")[0] for old, current in RENAMED_KEYS.items())


def test_names_are_changed_there_and_back() -> None:
    assert with_current_keys(OLD) == CURRENT
    assert as_hashed(CURRENT) == OLD
    assert with_current_keys(CURRENT) == CURRENT
    assert with_current_keys({"levers": None, "train": [1]}) == {"levers": None, "train": [1]}
    assert [other_name(key) for key in ("train.weights", "train.weight_dtype", "train.steps")] == [
        "train.weight_dtype", "train.weights", None,
    ]  # fmt: skip


@pytest.mark.parametrize("version", [3, 4, 5])
def test_stored_experiments_of_earlier_versions_are_read(version: int) -> None:
    assert Experiment.from_mapping(stored(version, **OLD)) == experiment(**CURRENT)


def test_hashes_are_those_of_the_versions_with_the_old_names() -> None:
    # As releases computed them that knew the old names only.
    for one in (Experiment.from_mapping(stored(5, **OLD)), experiment(**CURRENT)):
        assert one.question_hash(FINGERPRINT, BASE) == "b9ad2c2d7c8583c0"
        assert one.whole_hash() == "ca762ab15e05e0c1"


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_a_removed_key_at_its_default_is_dropped(version: int) -> None:
    quantize = {"denoiser": "int8", "derivative": "lean"}
    found = Experiment.from_mapping(stored(version, train={"steps": 10}, quantize=quantize))
    assert found == experiment(train={"steps": 10}, quantize={"denoiser": "int8"})


def test_a_removed_key_stays_in_the_hashes() -> None:
    # As releases computed them that had the key.
    quantize = {"denoiser": "int8", "derivative": "lean"}
    kept = {"denoiser": "int8"}
    for one in (Experiment.from_mapping(stored(5, **OLD, quantize=quantize)), experiment(**CURRENT, quantize=kept)):
        assert one.question_hash(FINGERPRINT, BASE) == "bf28baf59a509765"
        assert one.whole_hash() == "0167ecce1567f183"


def test_another_value_of_a_removed_key_is_refused_in_plain_words() -> None:
    quantize = {"denoiser": "int8", "derivative": "torchao"}
    with pytest.raises(WrongFormat) as refused:
        Experiment.from_mapping(stored(5, train={"steps": 1}, quantize=quantize))
    assert str(refused.value) == (
        "quantize.derivative: torchao is no longer supported; quantised layers store only the quantised weights and "
        "dequantise them again in the backward pass. Remove the key."
    )


def test_a_stored_experiment_with_both_names_of_a_key_is_refused() -> None:
    levers = {"swapped_blocks": 3, "block_swap": 4}
    with pytest.raises(WrongFormat, match=r"`levers\.swapped_blocks` and `levers\.block_swap` are the same key"):
        Experiment.from_mapping(stored(5, train={"steps": 1}, levers=levers))


def test_mixed_keys_are_named_each_in_a_sentence() -> None:
    assert mixed_keys(["train.weights", "levers.block_swap"]) == []
    assert mixed_keys(["train.weight_dtype", "levers.swapped_blocks", "train.weights"]) == [
        "`train.weights` and `train.weight_dtype` are the same key. Keep `train.weight_dtype`"
    ]


def test_files_of_traces_keep_their_names() -> None:
    levers = {"gradient_checkpointing": 1.0, "optimizer_offload": True, "fused_backward": True}
    offloaded = Experiment.model_validate(
        {"model": "cogvideox-2b", "data": {"kind": "shapes"}, "train": {"steps": 1}, "levers": levers}
    )
    slug = StepForm.of(offloaded, is_checkpointed=True).slug()
    assert slug == "cogvideox-2b.lora.bf16.checkpointed.fused-backward.optimizer-on-host"
    assert is_shipped(slug)
