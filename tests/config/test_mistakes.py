"""Each mistake as a person sees it: where, what is the case, what was probably meant."""

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from foretune.choices.experiment import Experiment
from foretune.config.mistakes import describe_mistakes
from foretune.config.yaml_files import parse

RIGHT: dict[str, Any] = {
    "model": "flux.1-dev",
    "method": {"kind": "lora", "rank": 16},
    "data": {"kind": "folder", "path": "./paintings"},
    "train": {"steps": 10},
}
# The words of the validation library and of Python, which are not the user's.
JARGON = (
    "input",
    "valid",
    "string",
    "integer",
    "boolean",
    "dict",
    "tuple",
    "instance",
    "parse",
    "none",
    "tag",
    "field",
)

MODEL = (
    "A catalogue name, a Hub id (owner/name or owner/name@revision), or a local folder in the diffusers layout. "
    "For example `model: flux.1-dev`."
)
TOP = (
    "name, model, method, data, train, objective, optimizer, quantize, levers, validate, save, parallel, profile, "
    "track, accept"
)

MISTAKES = {
    # unknown keys, at every level
    "modl: x": "modl: unknown key. Did you mean 'model'?",
    "lever: {}": "lever: unknown key. Did you mean 'levers'?",
    "validation: {every: 5}": "validation: unknown key. Did you mean 'validate'?",
    "zzz: 1": f"zzz: unknown key. Known here: {TOP}.",
    "5: x": f"5: unknown key. Known here: {TOP}.",
    "lr: 1e-4": "lr: unknown key. Did you mean 'optimizer.lr'?",
    "every: 5": "every: unknown key. Did you mean 'validate.every' or 'save.every'?",
    "train: {stesp: 10}": "train.stesp: unknown key. Did you mean 'steps'?",
    "train: {steps: 10, lr: 1}": "train.lr: unknown key. Did you mean 'optimizer.lr'?",
    "train: {steps: 10, ema: {decya: 0.9}}": "train.ema.decya: unknown key. Did you mean 'decay'?",
    "optimizer: {learning_rate: 1}": (
        "optimizer.learning_rate: unknown key. "
        "Known here: kind, lr, schedule, warmup_steps, betas, eps, weight_decay, compensation."
    ),
    "method: {kind: lora, rnak: 8}": "method.rnak: unknown key. Did you mean 'rank'?",
    "method: {kind: full, rank: 8}": (
        "method.rank: goes with kind lora, dora, rslora, loha or lokr, but this is kind full."
    ),
    "data: {kind: shapes, path: x}": (
        "data.path: goes with kind folder, cifar10, huggingface, clips or shards, but this is kind shapes."
    ),
    "data: {kind: folder, folders: [{path: a}, {path: b, repats: 2}]}": (
        "data.folders.1.repats: unknown key. Did you mean 'repeats'?"
    ),
    # a mistyped key that is also missing is one mistake
    "data: {kind: cifar10, paht: x}": "data.paht: unknown key. Did you mean 'path'?",
    "data: {kind: folder, folders: [{paht: b}]}": "data.folders.0.paht: unknown key. Did you mean 'path'?",
    # missing
    "data: {kind: cifar10}": "data.path: is missing. Folder that contains train/ or data_batch_1.",
    "data: {kind: folder}": "data: needs path (one folder) or folders (several).",
    "data: {path: x}": "data.kind: is missing. Known: folder, cifar10, huggingface, clips, shards, shapes.",
    "method: {rank: 8}": "method.kind: is missing. Known: full, lora, dora, rslora, loha, lokr, oft.",
    "method: {kind: null}": "method.kind: is missing. Known: full, lora, dora, rslora, loha, lokr, oft.",
    "train: {}": "train: needs steps (optimizer steps), epochs (passes over the data) or seconds (training time).",
    "optimizer: {betas: [0.9]}": "optimizer.betas.1: is missing; the list should have 2 entries (found [0.9])",
    # kinds and words from a list
    "method: {kind: loar}": (
        "method.kind: 'loar' is not one of full, lora, dora, rslora, loha, lokr, oft. Did you mean 'lora'?"
    ),
    "method: {kind: 5}": "method.kind: 5 is not one of full, lora, dora, rslora, loha, lokr, oft.",
    "train: {steps: 10, precision: bf61}": (
        "train.precision: 'bf61' is not one of fp32, tf32, bf16, fp16. Did you mean 'bf16'?"
    ),
    "train: {steps: 10, precision: 16}": (
        "train.precision: 16 is not one of fp32, tf32, bf16, fp16. Did you mean 'fp16'?"
    ),
    "optimizer: {kind: adam}": (
        "optimizer.kind: 'adam' is not one of adamw, adamw8bit, paged-adamw8bit, lion, lion8bit, adafactor, prodigy, "
        "schedule-free. Did you mean 'adamw'?"
    ),
    "track: [tensorbaord]": "track.0: 'tensorbaord' is not one of tensorboard, wandb, mlflow, trackio. "
    "Did you mean 'tensorboard'?",
    # numbers
    "train: {steps: ten}": "train.steps: should be a whole number (found 'ten')",
    "train: {steps: 1.5}": "train.steps: should be a whole number (found 1.5)",
    "train: {steps: [1]}": "train.steps: should be a whole number (found [1])",
    "train: {steps: 0}": "train.steps: should be at least 1 (found 0)",
    "train: {steps: 1, seed: 9223372036854775808}": (
        "train.seed: should be less than 9223372036854775808 (found 9223372036854775808)"
    ),
    "method: {kind: lora, rank: 5000}": "method.rank: should be at most 4096 (found 5000)",
    "method: {kind: lora, rank: null}": "method.rank: should be a whole number (found nothing)",
    "method: {kind: lora, dropout: 1}": "method.dropout: should be less than 1 (found 1)",
    "method: {kind: lora, alpha: 0}": "method.alpha: should be more than 0 (found 0)",
    "method: {kind: lora, alpha: .inf}": "method.alpha: should be a finite number (found .inf)",
    "optimizer: {lr: fast}": "optimizer.lr: should be a number (found 'fast')",
    "optimizer: {lr: {a: 1}}": "optimizer.lr: should be a number (found {a: 1})",
    "data: {kind: shapes, flip: 1.5}": "data.flip: should be at most 1 (found 1.5)",
    # true or false
    "levers: {cache_text: perhaps}": "levers.cache_text: should be true or false (found 'perhaps')",
    "levers: {cache_text: 5}": "levers.cache_text: should be true or false (found 5)",
    "levers: {cache_text: null}": "levers.cache_text: should be true or false (found nothing)",
    # text
    "model: null": f"model: should be text (found nothing). {MODEL}",
    "model: ''": f"model: should not be empty. {MODEL}",
    "model: 5": "model: should be text, so it needs quotes: '5'",
    "data: {kind: folder, path: x, trigger: true}": "data.trigger: should be text, so it needs quotes: 'true'",
    "data: {kind: cifar10, path: [x]}": (
        "data.path: should be text (found [x]). Folder that contains train/ or data_batch_1."
    ),
    "validate: {prompts: [a, 5]}": "validate.prompts.1: should be text, so it needs quotes: '5'",
    "name: a b": (
        "name: 'a b' is not valid. Name of the folder of its runs: "
        'up to 100 letters, digits, ".", "_" and "-", starting with a letter or digit.'
    ),
    # lists
    "track: tensorboard": "track: should be a list. Did you mean `track: [tensorboard]`?",
    "track: null": "track: should be a list; an empty one is [].",
    "validate: {prompts: a red circle}": (
        "validate.prompts: should be a list. Did you mean `prompts: [a red circle]`?"
    ),
    "data: {kind: folder, folders: {path: b}}": (
        "data.folders: should be a list. Did you mean `folders: [{path: b}]`?"
    ),
    "method: {kind: lora, targets: []}": (
        "method.targets: should not be empty. "
        "Target modules, by the end of their names. Left out: the attention projections of the model family."
    ),
    "method: {kind: lora, targets: [1]}": "method.targets.0: should be text, so it needs quotes: '1'",
    "optimizer: {betas: 0.9}": "optimizer.betas: should be a list of 2 (found 0.9)",
    "optimizer: {betas: [0.9, 0.9, 0.9]}": "optimizer.betas: should have 2 entries (found [0.9, 0.9, 0.9])",
    # sections
    "method: lora": "method: should be a section. Did you mean `method: {kind: lora}`?",
    "method: LoRA": "method: should be a section. Did you mean `method: {kind: lora}`?",
    "method: 5": "method: should be a section, for example `method: {kind: lora, rank: 16}` (found 5)",
    "data: shapes": "data: should be a section. Did you mean `data: {kind: shapes}`?",
    "data: cifar10": "data: should be a section. Did you mean `data: {kind: cifar10, path: ...}`?",
    "data: ./paintings": (
        "data: should be a section, for example `data: {kind: folder, path: ./paintings}` (found './paintings')"
    ),
    "data: {kind: folder, folders: [b]}": "data.folders.0: should be a section. Did you mean `{path: b}`?",
    "data: {kind: folder, folders: [5]}": ("data.folders.0: should be a section, for example `{path: ...}` (found 5)"),
    "train: null": "train: should be a section, for example `train: {steps: 1000}` (found nothing)",
    "train: {steps: 1, ema: true}": ("train.ema: should be a section, for example `ema: {decay: 0.999}` (found true)"),
    "save: [1]": "save: should be a section, for example `save: {keep: 2}` (found [1])",
    # our own rules
    "train: {steps: 1, epochs: 1}": (
        "train: has both steps and epochs; keep one of them (on the command line: train.steps=null)."
    ),
    "data: {kind: folder, path: a, folders: [{path: b}]}": (
        "data: has both path and folders; put the path into folders, or take one of them away."
    ),
    # long values are cut
    f"train: {{steps: {'x' * 100}}}": f"train.steps: should be a whole number (found '{'x' * 58}…)",
}


def mistakes_in(mapping: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Experiment.model_validate(mapping)
    return describe_mistakes(caught.value)


@pytest.mark.parametrize("written", MISTAKES)
def test_a_mistake(written: str) -> None:
    assert mistakes_in({**copy.deepcopy(RIGHT), **parse(written)}) == [MISTAKES[written]]


@pytest.mark.parametrize("written", MISTAKES)
def test_no_sentence_speaks_the_library_s_language(written: str) -> None:
    words = MISTAKES[written].lower().replace("(", " ").split()
    assert not set(JARGON) & set(words)


def test_what_an_experiment_cannot_do_without() -> None:
    assert mistakes_in({}) == [
        f"model: is missing. {MODEL}",
        (
            "data: is missing. The training images or clips: source, size, buckets, cropping, caption dropout. "
            "For example `data: {kind: folder, path: ./paintings}`."
        ),
        (
            "train: is missing. Length, batch size, precision, seed, gradient clipping, EMA. "
            "For example `train: {steps: 1000}`."
        ),
    ]


def test_a_mistyped_key_that_is_needed_is_one_mistake() -> None:
    mapping = {**RIGHT, "modle": RIGHT["model"]}
    del mapping["model"]
    assert mistakes_in(mapping) == ["modle: unknown key. Did you mean 'model'?"]


def test_all_mistakes_come_at_once() -> None:
    found = mistakes_in(
        {
            "model": "flux.1-dev",
            "method": {"kind": "lora", "rnak": 8},
            "data": {"kind": "folder", "folders": [{"path": "a", "repeats": 0}, "b"]},
            "train": {"steps": "ten", "precision": "fp8"},
            "optimiser": {},
        }
    )
    assert [text.partition(":")[0] for text in found] == [
        "method.rnak",
        "data.folders.0.repeats",
        "data.folders.1",
        "train.steps",
        "train.precision",
        "optimiser",
    ]


def test_an_error_without_a_sentence_of_its_own_is_still_reported() -> None:
    error = ValidationError.from_exception_data(
        "Experiment", [{"type": "url_parsing", "loc": ("model",), "input": "x", "ctx": {"error": "odd"}}]
    )
    assert describe_mistakes(error) == ["model: Input should be a valid URL, odd (found 'x')"]
