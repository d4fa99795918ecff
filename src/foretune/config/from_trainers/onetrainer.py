"""OneTrainer's JSON files: presets and what it saves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune import catalog
from foretune.config.from_trainers.beside import read_beside
from foretune.config.from_trainers.data_words import is_video, num_blocks, round_px, set_folders
from foretune.config.from_trainers.model_names import refuse_unknown_kind, set_model
from foretune.config.from_trainers.onetrainer_keys import (
    ADAPTERS,
    DENSITIES,
    ENCODERS,
    KNOWN,
    MODEL_TYPES,
    OPTIMIZERS,
    OTHERS,
    QUANTIZERS,
    REFUSED_METHODS,
    RULES,
)
from foretune.config.from_trainers.sheet import Sheet, text_of
from foretune.config.from_trainers.words import fill_lr, set_optimizer, set_precision, set_quantizer, set_schedule

__all__ = ["KNOWN", "OTHERS", "RULES", "translate"]

_WARMUP = 200


def translate(sheet: Sheet, folder: Path) -> None:
    """Fills in the sheet."""
    keys = sheet.keys
    method = (text_of(keys, "training_method") or "FINE_TUNE").upper()
    if method in REFUSED_METHODS:
        sheet.refuse("training_method", REFUSED_METHODS[method])
    for key in ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4"):
        if keys.boolean(f"{key}.train"):
            sheet.lacks(f"{key}.train", "text encoders are not trained")
            sheet.unimitated.append("the training of text encoders")
    kind = refuse_unknown_kind(keys, sheet, "model_type", MODEL_TYPES)
    if sheet.refusals:
        return
    set_model(sheet, "base_model_name", of_kind=kind or "sd1.5-unet", kind_key="model_type")
    part = "unet" if sheet.family is not None and catalog.family_facts(sheet.family).is_unet else "transformer"
    set_precision(sheet, "train_dtype", "FLOAT_16")
    _set_method(sheet, method)
    set_optimizer(sheet, "optimizer.optimizer", OPTIMIZERS, "ADAMW")
    _set_dtypes(sheet, part)
    set_schedule(sheet, "learning_rate_scheduler")
    if keys.boolean("optimizer.fused_back_pass"):
        keys.answer("clip_grad_norm", "not needed", "with fused_back_pass there is never a norm of all gradients")
    sheet.apply(RULES)
    _set_optimizer_details(sheet)
    _set_ema(sheet)
    _set_levers(sheet, part)
    _set_objective(sheet)
    _set_data(sheet, folder)
    fill_lr(sheet)


def _set_method(sheet: Sheet, method: str) -> None:
    keys = sheet.keys
    if method == "FINE_TUNE":
        sheet.set("training_method", "method.kind", "full")
        sheet.settings["method.kind"] = "full"
        for key in ("lora_rank", "lora_alpha", "peft_type", "lora_decompose", "dropout_probability"):
            keys.answer(key, "not needed", "adapters only")
        return
    if method != "LORA":
        sheet.refuse("training_method", f"the method {method} is not known")
        return
    word = (text_of(keys, "peft_type") or "LORA").upper()
    kind = ADAPTERS.get(word)
    if kind is None:
        sheet.refuse("peft_type", f"there is no adapter of the kind {word}")
        return
    if kind == "lora" and keys.boolean("lora_decompose"):
        kind = "dora"
    sheet.settings["method.kind"] = kind
    for key in ("training_method", "peft_type", "lora_decompose"):
        keys.answer(key, "translated", f"method.kind={kind}")
    if kind == "oft":
        sheet.set("oft_block_size", "method.block_size", keys.integer("oft_block_size", 32, at_least=2))
        for key in ("lora_rank", "lora_alpha"):
            keys.answer(key, "not needed", "OFT has blocks")
    else:
        sheet.set("lora_rank", "method.rank", keys.integer("lora_rank", 16))
        sheet.set("lora_alpha", "method.alpha", keys.number("lora_alpha", 1.0) or 1.0)
    if kind == "lokr":
        factor = text_of(keys, "lokr_decompose_factor") or "-1"
        sheet.set("lokr_decompose_factor", "method.factor", int(factor) if factor.lstrip("-").isdigit() else -1)
        sheet.set("lokr_full_matrix", "method.full_matrix", keys.boolean("lokr_full_matrix"))
    dropout = keys.number("dropout_probability", None)
    if dropout:
        sheet.set("dropout_probability", "method.dropout", dropout)
    sheet.unimitated.append(
        "adapters of layers other than the attention projections; OneTrainer has them on more layers"
    )


def _set_dtypes(sheet: Sheet, part: str) -> None:
    """The base of adapters may be quantised; fully trained weights have the dtype of their part."""
    keys = sheet.keys
    key = f"{part}.weight_dtype"
    word = (text_of(keys, key) or text_of(keys, "weight_dtype") or "FLOAT_32").upper()
    if sheet.settings.get("method.kind") == "full":
        is_bf16 = word == "BFLOAT_16" and sheet.settings.get("train.precision") == "bf16"
        sheet.set(key, "train.weight_dtype", "bf16" if is_bf16 else "fp32")
        if word not in ("BFLOAT_16", "FLOAT_32"):
            sheet.unimitated.append(f"weights in {word}: fp32 is counted")
        _set_rounding(sheet, is_bf16=is_bf16)
    else:
        set_quantizer(sheet, key, QUANTIZERS)
        is_bf16 = (text_of(keys, "lora_weight_dtype") or "").upper() == "BFLOAT_16"
        if is_bf16 and sheet.settings.get("train.precision") == "bf16":
            sheet.set("lora_weight_dtype", "train.weight_dtype", "bf16")
        keys.answer("optimizer.stochastic_rounding", "not needed", "weights in fp32 are not rounded")
    keys.answer("weight_dtype", "not needed", "each part has its own")
    words = [f"text_encoder{number}.weight_dtype" for number in ("", "_2", "_3", "_4")]
    sizes = [name for name in words if ENCODERS.get((text_of(keys, name) or "NONE").upper(), "int8") != "none"]
    for name in sizes[:1]:
        set_quantizer(sheet, name, ENCODERS, "quantize.text_encoders")
    for name in words:
        keys.answer(name, "not needed", "the compute dtype, or that of the first quantised encoder")


def _set_rounding(sheet: Sheet, *, is_bf16: bool) -> None:
    key = "optimizer.stochastic_rounding"
    asked = sheet.keys.boolean(key)
    if not is_bf16:
        sheet.keys.answer(key, "not needed", "weights in fp32 are not rounded")
    elif asked and sheet.settings["optimizer.kind"] == "adamw":
        sheet.set(key, "optimizer.compensation", "stochastic")
    elif asked:
        sheet.lacks(key, "stochastic rounding is with adamw only; it takes no memory")
    sheet.keys.answer(key, "same", "no stochastic rounding")


def _set_optimizer_details(sheet: Sheet) -> None:
    keys = sheet.keys
    found = [keys.number("optimizer.beta1", None), keys.number("optimizer.beta2", None)]
    if found != [None, None]:
        betas = [default if value is None else value for value, default in zip(found, (0.9, 0.999), strict=True)]
        for key in ("optimizer.beta1", "optimizer.beta2"):
            if key in keys:
                sheet.set(key, "optimizer.betas", betas)
    eps = keys.number("optimizer.eps", None)
    if eps:
        sheet.set("optimizer.eps", "optimizer.eps", eps)
    warmup = keys.number("learning_rate_warmup_steps", float(_WARMUP)) or 0.0
    if 0 < warmup < 1:
        sheet.lacks("learning_rate_warmup_steps", "a share of the steps, whose number is not known")
        return
    sheet.set("learning_rate_warmup_steps", "optimizer.warmup_steps", round(warmup))
    if keys.boolean("optimizer.fused_back_pass"):
        sheet.set("optimizer.fused_back_pass", "levers.fused_backward", True)
        sheet.settings["train.max_grad_norm"] = None


def _set_ema(sheet: Sheet) -> None:
    keys = sheet.keys
    word = (text_of(keys, "ema") or "OFF").upper()
    decay = keys.number("ema_decay", 0.999)
    if word in ("GPU", "CPU"):
        sheet.set("ema", "train.ema", {"decay": decay})
        keys.answer("ema_decay", "translated", f"train.ema.decay={decay}")
        if word == "CPU":
            sheet.settings["levers.ema_offload"] = True
    for key in ("ema", "ema_decay"):
        keys.answer(key, "same", "no EMA")


def _set_levers(sheet: Sheet, part: str) -> None:
    keys = sheet.keys
    word = (
        (text_of(keys, "gradient_checkpointing") or "").upper()
        if not isinstance(keys.get("gradient_checkpointing"), bool)
        else ("ON" if keys.get("gradient_checkpointing") else "OFF")
    )
    key = f"{part}.gradient_checkpointing"
    is_on = word != "OFF" if word else keys.boolean(key, default=True)
    sheet.settings["levers.gradient_checkpointing"] = float(is_on)
    for name in ("gradient_checkpointing", key):
        keys.answer(name, "translated", f"levers.gradient_checkpointing={float(is_on)}")
    offload = f"{part}.activation_offloading"
    if is_on and (keys.boolean(offload) or (word == "CPU_OFFLOADED" and keys.boolean("enable_activation_offloading"))):
        for name in (offload, "enable_activation_offloading"):
            sheet.set(name, "levers.activation_offload", True)
        sheet.settings["levers.activation_offload"] = True
    for name in (offload, "enable_activation_offloading", "enable_async_offloading"):
        keys.answer(name, "same", "off")
    _set_swap(sheet, part)
    if keys.boolean("compile"):
        sheet.set("compile", "levers.compile", "regional")
    if keys.boolean("multi_gpu"):
        listed = [one for one in (text_of(keys, "device_indexes") or "").split(",") if one.strip()]
        sheet.set("multi_gpu", "parallel.devices", len(listed) or 1)
    keys.answer("device_indexes", "not needed", "the first parallel.devices of the GPUs that torch sees are used")


def _set_swap(sheet: Sheet, part: str) -> None:
    keys = sheet.keys
    key = f"{part}.offload_fraction" if f"{part}.offload_fraction" in keys else "layer_offload_fraction"
    share = keys.number(key, None)
    if not share or sheet.model is None:
        keys.answer(key, "same", "no block swap")
        return
    blocks = round(num_blocks(sheet.model) * min(share, 1.0))
    if sheet.settings.get("method.kind") == "full":
        sheet.lacks(key, "blocks are swapped with adapters only. Nearest: levers.optimizer_offload=true")
        sheet.unimitated.append("layers that are offloaded: all are counted on the device")
    elif blocks:
        sheet.set(key, "levers.block_swap", blocks, "counted in blocks instead of layers")


def _set_objective(sheet: Sheet) -> None:
    keys = sheet.keys
    key = "timestep_distribution"
    flows = sheet.family is not None and catalog.family_facts(sheet.family).is_flow_matching
    word = (text_of(keys, key) or "").upper()
    if not flows:
        sheet.settings.pop("objective.shift", None)
        for name in (key, "timestep_shift", "dynamic_timestep_shifting"):
            keys.answer(name, "not needed", "flow matching only")
    elif word in DENSITIES:
        sheet.set(key, "objective.timestep_density", DENSITIES[word])
    elif word:
        sheet.lacks(key, f"there is no density {word}. Set objective.timestep_density")
    if keys.boolean("dynamic_timestep_shifting"):
        sheet.settings.pop("objective.shift", None)


def _set_data(sheet: Sheet, folder: Path) -> None:
    keys = sheet.keys
    found = read_beside(sheet, "concept_file_name", folder)
    concepts = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    folders = [(str(one["path"]), 1) for one in concepts if isinstance(one.get("path"), str) and one["path"]]
    inline = [key for key in list(keys.unanswered()) if key.startswith("concepts.") and key.endswith(".path")]
    folders += [(text, 1) for key in inline if key.count(".") == _DOTS and (text := text_of(keys, key)) is not None]
    for key in inline:
        keys.answer(key, "translated", "data.path")
    kinds = [key for key in list(keys.unanswered()) if key.startswith("concepts.") and key.endswith(".type")]
    if any(str(keys.get(key)).upper() == "PRIOR_PREDICTION" for key in kinds) or any(
        str(one.get("type", "")).upper() == "PRIOR_PREDICTION" for one in concepts
    ):
        sheet.refuse(kinds[0] if kinds else "concept_file_name", "prior preservation is not supported")
    set_folders(sheet, folders)
    if concepts:
        keys.answer("concept_file_name", "translated", f"data: {len(folders)} folders")
    keys.answer("concept_file_name", "not needed", "the file is not beside this one")
    keys.answer("concepts", "not needed", "empty")
    _set_sizes(sheet)


_DOTS = 2


def _set_sizes(sheet: Sheet) -> None:
    """`resolution` may be a list: 512, "512,768", "768x512"."""
    keys = sheet.keys
    text = text_of(keys, "resolution") or "512"
    sizes: list[tuple[int, int]] = []
    for one in text.split(","):
        sides = [side.strip() for side in one.lower().split("x")]
        if not all(side.isdigit() and int(side) > 0 for side in sides):
            keys.problems.append(f"resolution: should be pixels, such as 512 or 768x512 (found {text!r})")
            return
        sizes.append((int(sides[-1]), int(sides[0])))
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    value: Any = round_px(width) if width == height else f"{round_px(width)}x{round_px(height)}"
    sheet.set("resolution", "data.resolution", value)
    if len(set(sizes)) > 1:
        sheet.assume(f"of several resolutions the largest is taken: {value} px")
    frames = text_of(keys, "frames")
    if is_video(sheet):
        counts = [int(one) for one in (frames or "25").split(",") if one.strip().isdigit()]
        sheet.set("frames", "data.num_frames", max(counts, default=25))
    keys.answer("frames", "not needed", "for video models")
    for key in ("text_encoder_sequence_length", "text_encoder_2_sequence_length"):
        facts = None if sheet.family is None else catalog.family_facts(sheet.family)
        if key in keys and facts is not None and not facts.text_is_fixed:
            sheet.set(key, "data.max_text_tokens", keys.integer(key, 77, at_least=8))
