"""What configurations of other trainers become: settings, answers for every key, and what really follows a key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from foretune.config.from_trainers.importing import TRANSLATORS, TranslatedTraining, translate
from foretune.config.from_trainers.programs import PROGRAMS
from foretune.config.from_trainers.sheet import Rule
from foretune.config.reading import understand
from foretune.core.errors import UserError
from tests.config.from_trainers.samples import SAMPLES, Sample


def setting(mapping: Mapping[str, Any], dotted: str) -> Any:
    where: Any = mapping
    for part in dotted.split("."):
        where = where.get(part) if isinstance(where, Mapping) else None
    return where


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_configuration_becomes_an_experiment(sample: Sample, tmp_path: Path) -> None:
    found = translate(sample.write(tmp_path))
    assert found.program.key == sample.program
    assert found.model == sample.model
    assert {key: setting(found.mapping, key) for key in sample.expected} == dict(sample.expected)
    assert found.keys_with("unknown") == ()
    understand(found.planned(), source=None, only_planned=True)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_each_key_has_one_answer_and_an_unknown_one_is_named(sample: Sample, tmp_path: Path) -> None:
    usual = translate(sample.write(tmp_path))
    odd = translate(sample.write(tmp_path, {"no_such_key": 7}))
    assert [answer.key for answer in odd.keys_with("unknown")] == ["no_such_key"]
    assert len(odd.answers) == len(usual.answers) + 1
    assert len({answer.key for answer in odd.answers}) == len(odd.answers)
    assert odd.mapping == usual.mapping


_WORDS: Mapping[str, str | list[str]] = {
    "model_family": "kolors", "model_flavour": "medium", "optimizer": "lion", "optimizer_type": "Lion",
    "lr_scheduler": "linear", "mixed_precision": "fp16", "base_model_precision": "nf4-bnb", "report_to": "mlflow",
    "train.optimizer": "lion8bit", "train.dtype": "fp16", "model.arch": "chroma", "model.qtype": "int8",
    "network.type": "lokr", "train.timestep_type": "sigmoid", "log_with": "mlflow", "timestep_sampling": "sigmoid",
    "network_module": "networks.loha", "model_type": "QWEN full lora", "ema_device": "accelerator",
     "model.is_flux": "false", "transformer.weight_dtype": "INT_8", "weighting_scheme": "none",
    "unet.weight_dtype": "FLOAT_32", "text_encoder_2.weight_dtype": "FLOAT_8", "optimizer.optimizer": "LION",
    "timestep_distribution": "UNIFORM", "train_dtype": "FLOAT_32", "ema": "GPU", "training_method": "FINE_TUNE LORA",
    "peft_type": "LORA", "gradient_checkpointing": "ON", "resolution": "256", "lora_type": "lycoris",
    "pretrained_model_name_or_path": "Kwai-Kolors/Kolors-diffusers", "model.name_or_path": "fal/AuraFlow-v0.3",
    "base_model_name": "Qwen/Qwen-Image", "network_args": ["algo=loha"], "frames": "65",
    "script": "train_dreambooth_lora_sd3",
}  # fmt: skip


def others(key: str, value: Any) -> list[Any]:
    """Other values of the same kind."""
    known = _WORDS.get(key, "")
    word: list[Any] = known.split() if isinstance(known, str) else [known]
    if isinstance(value, bool):
        return [*word, not value]
    if isinstance(value, (int, float)):
        return [value * 2, value + 64, 0.5, value / 2, *word]
    text = str(value)
    is_number = text.replace(".", "").replace("e-", "").isdigit()
    numbers = [str(float(text) * 2), str(int(float(text) * 2) or 1), "0.5"] if is_number else []
    return [*word, *numbers, f"{text}-2", [512], ["a green barn"]]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_what_is_called_translated_changes_the_experiment(sample: Sample, tmp_path: Path) -> None:
    usual = translate(sample.write(tmp_path))
    idle = [
        answer.key
        for answer in usual.keys_with("translated")
        if not answer.key.startswith("accelerate.") and answer.key != "script"
        if not changes_something(sample, usual, answer.key, answer.value, tmp_path)
    ]
    assert idle == [], [answer for answer in usual.answers if answer.key in idle]


def changes_something(sample: Sample, usual: TranslatedTraining, key: str, value: Any, folder: Path) -> bool:
    """Whether another value, or none, makes another experiment, or one that is refused because of this key."""
    spelt = f"--{key}" if isinstance(sample.content, Mapping) and f"--{key}" in sample.content else key
    for one in others(key, value):
        if differs(sample.write(folder, {spelt: one}), usual, is_word=one in str(_WORDS.get(key, "")).split()):
            return True
    return differs(sample.write(folder, without=spelt), usual, is_word=isinstance(value, bool))


def differs(path: Path, usual: TranslatedTraining, *, is_word: bool) -> bool:
    """A word of the program that does not go with the others was read too."""
    try:
        return translate(path).mapping != usual.mapping
    except UserError:
        return is_word


def minimal(program: str) -> Sample:
    return next(sample for sample in SAMPLES if sample.program == program)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_rule_sets_its_setting(program: str, tmp_path: Path) -> None:
    values: dict[str, tuple[Any, Any]] = {
        "whole": (2, 3), "number": (0.25, 0.5), "yes": (True, False), "text": ("one", "two"),
    }  # fmt: skip
    idle = []
    for rule in TRANSLATORS[program].RULES:
        found = [set_by(rule, minimal(program), value, tmp_path) for value in values[rule.reading]]
        if found[0] == found[1]:
            idle.append(rule.key)
    assert idle == []


def set_by(rule: Rule, sample: Sample, value: Any, folder: Path) -> Any:
    if isinstance(sample.content, str) and value is False:
        return setting(translate(sample.write(folder, without=rule.key)).mapping, rule.setting)
    return setting(translate(sample.write(folder, {rule.key: value})).mapping, rule.setting)


CLIPPING = {
    "simpletuner": "max_grad_norm",
    "ai-toolkit": "train.max_grad_norm",
    "sd-scripts": "max_grad_norm",
    "onetrainer": "clip_grad_norm",
    "diffusers": "max_grad_norm",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_clipping_is_not_the_default_clipping(program: str, tmp_path: Path) -> None:
    """0 turns it off there; here a key that is left out clips at 1."""
    found = translate(minimal(program).write(tmp_path, {CLIPPING[program]: 0}))
    assert found.mapping["train"]["max_grad_norm"] is None
