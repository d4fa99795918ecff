"""Words that trainers share: optimizers, schedules, dtypes, quantisers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.config.from_trainers.sheet import Sheet, text_of

Compensation = Literal["none", "kahan", "stochastic"]


@dataclass(frozen=True)
class OptimizerWord:
    """What an optimizer's name means here."""

    kind: str
    weights: Literal["fp32", "bf16"] | None = None
    """dtype of the trained weights that it needs."""
    compensation: Compensation = "none"
    remark: str = ""


_PLAIN: Mapping[str, OptimizerWord] = {
    "adamw": OptimizerWord("adamw"),
    "adam": OptimizerWord("adamw", remark="with decoupled weight decay"),
    "adam8bit": OptimizerWord("adamw8bit", remark="with decoupled weight decay"),
    "adamw8bit": OptimizerWord("adamw8bit"),
    "pagedadamw8bit": OptimizerWord("paged-adamw8bit"),
    "lion": OptimizerWord("lion"),
    "lion8bit": OptimizerWord("lion8bit"),
    "adafactor": OptimizerWord("adafactor"),
    "prodigy": OptimizerWord("prodigy"),
    "adamwschedulefree": OptimizerWord("schedule-free"),
    "schedulefreeadamw": OptimizerWord("schedule-free"),
}


def _squeezed(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def set_optimizer(sheet: Sheet, key: str, own: Mapping[str, OptimizerWord], default: str) -> OptimizerWord:
    """Sets the optimizer; one that is not here is planned as AdamW, which is said."""
    word = text_of(sheet.keys, key)
    if word is None:
        sheet.assume(f"{key} is not set: {default}, its default in {sheet.program.title}")
    known = {**_PLAIN, **{_squeezed(name): meaning for name, meaning in own.items()}}
    meaning = known.get(_squeezed(word or default))
    if meaning is None:
        sheet.settings["optimizer.kind"] = "adamw"
        sheet.lacks(key, f"there is no optimizer {word}. Nearest: optimizer.kind=adamw, which is planned")
        sheet.unimitated.append(f"the states of {word}: those of AdamW are counted")
        return OptimizerWord("adamw")
    sheet.set(key, "optimizer.kind", meaning.kind, meaning.remark)
    if meaning.weights == "bf16":
        sheet.settings["train.weight_dtype"] = "bf16"
    if meaning.compensation != "none":
        sheet.settings["optimizer.compensation"] = meaning.compensation
    return meaning


def fill_lr(sheet: Sheet) -> None:
    """An optimizer that finds the learning rate multiplies it by what stands there."""
    spec = OPTIMIZER_SPECS[str(sheet.settings.get("optimizer.kind", "adamw"))]
    if spec.finds_lr and "optimizer.lr" not in sheet.settings:
        sheet.settings["optimizer.lr"] = spec.lr_or(1.0)


_SCHEDULES: Mapping[str, tuple[str, str]] = {
    "constant": ("constant", ""),
    "constant_with_warmup": ("constant", ""),
    "cosine": ("cosine", ""),
    "linear": ("linear", ""),
}
_NEAREST = {
    "polynomial": "linear",
    "cosine_with_restarts": "cosine",
    "cosine_with_hard_restarts": "cosine",
    "cosine_annealing": "cosine",
    "cosine_with_min_lr": "cosine",
    "sine": "constant",
    "step": "constant",
    "rex": "cosine",
    "adafactor": "constant",
    "piecewise_constant": "constant",
    "inverse_sqrt": "constant",
    "warmup_stable_decay": "linear",
    "custom": "constant",
}


def set_schedule(sheet: Sheet, key: str) -> None:
    word = text_of(sheet.keys, key)
    if word is None:
        return
    plain = word.lower()
    if plain in _SCHEDULES:
        sheet.set(key, "optimizer.schedule", _SCHEDULES[plain][0])
        return
    nearest = _NEAREST.get(plain, "constant")
    sheet.settings["optimizer.schedule"] = nearest
    sheet.lacks(key, f"there is no schedule {word}. Nearest: optimizer.schedule={nearest}, which is set")


def set_precision(sheet: Sheet, key: str, default: str) -> str:
    """Sets train.precision from fp16, bf16 and the names of each program for fp32."""
    word = text_of(sheet.keys, key)
    if word is None and key in sheet.keys:
        word = "no"  # YAML and TOML have false
    known = {
        "bf16": "bf16", "bfloat16": "bf16", "bfloat_16": "bf16",
        "fp16": "fp16", "float16": "fp16", "float_16": "fp16", "half": "fp16",
        "no": "fp32", "none": "fp32", "fp32": "fp32", "float": "fp32", "float32": "fp32", "float_32": "fp32",
        "tf32": "tf32", "tfloat_32": "tf32",
    }  # fmt: skip
    precision = known.get((word or default).lower())
    if precision is None:
        sheet.settings["train.precision"] = "bf16"
        sheet.lacks(key, f"there is no precision {word}. Nearest: train.precision=bf16, which is set")
        return "bf16"
    sheet.set(key, "train.precision", precision)
    if word is None:
        sheet.assume(f"{key} is not set: {precision}, its default in {sheet.program.title}")
    return precision


def set_quantizer(sheet: Sheet, key: str, known: Mapping[str, str], setting: str = "quantize.denoiser") -> None:
    """Sets the quantised base; a backend that is not here is planned with the nearest one."""
    word = text_of(sheet.keys, key)
    if word is None:
        return
    by_lower = {name.lower(): value for name, value in known.items()}
    numbers = by_lower.get(word.lower())
    if numbers == "none":
        sheet.keys.answer(key, "same", "nothing is quantised")
    elif numbers is not None:
        sheet.set(key, setting, numbers)
    else:
        numbers = nearest_numbers(word)
        sheet.settings[setting] = numbers
        sheet.lacks(key, f"the backend of {word} is not here. Nearest: {setting}={numbers}, which is set")
        sheet.unimitated.append(f"{word}: {numbers} is counted instead")


def nearest_numbers(word: str) -> str:
    """The quantisation with the nearest number of bits."""
    plain = word.lower()
    if any(bits in plain for bits in ("int4", "nf4", "fp4", "uint4", "int2", "uint3", "uint2", "nfloat_4")):
        return "nf4"
    return "float8" if any(name in plain for name in ("fp8", "float8", "float_8", "float_w8")) else "int8"
