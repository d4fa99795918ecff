"""SimpleTuner's config.json, and the multidatabackend.json beside it."""

from pathlib import Path
from typing import Any

from foretune.config.from_trainers.beside import read_beside
from foretune.config.from_trainers.dialects import SIMPLETUNER
from foretune.config.from_trainers.model_names import LIST, answer_kind, set_model
from foretune.config.from_trainers.sheet import Sheet, text_of
from foretune.config.from_trainers.simpletuner_data import set_data
from foretune.config.from_trainers.simpletuner_keys import (
    EDITS,
    FLAVOURS,
    KNOWN,
    OPTIMIZERS,
    OTHER_NAMES,
    OTHERS,
    QUANTIZERS,
    REFUSED,
    RULES,
)
from foretune.config.from_trainers.words import fill_lr, set_optimizer, set_precision, set_quantizer, set_schedule
from foretune.core.trackers import TRACKER_SPECS

__all__ = ["KNOWN", "OTHERS", "RULES", "translate"]


def translate(sheet: Sheet, folder: Path) -> None:
    """Fills in the sheet from a config.json in this folder."""
    _refuse(sheet)
    _set_model(sheet)
    set_precision(sheet, "mixed_precision", "bf16")
    _set_method(sheet, folder)
    set_optimizer(sheet, "optimizer", OPTIMIZERS, "adamw_bf16")
    _fit_weights(sheet)
    set_schedule(sheet, "lr_scheduler")
    sheet.apply(RULES)
    _set_length(sheet)
    _set_betas(sheet)
    _set_ema(sheet)
    _set_checkpointing(sheet)
    _set_quantization(sheet)
    _set_rest(sheet)
    set_data(sheet, folder)
    fill_lr(sheet)


def _refuse(sheet: Sheet) -> None:
    for key, reason in REFUSED.items():
        value = str(sheet.keys.get(key)).lower()
        if value not in ("none", "false", ""):
            sheet.refuse(key, reason)


def _set_model(sheet: Sheet) -> None:
    keys = sheet.keys
    word = (text_of(keys, "model_family") or "").lower()
    flavour = text_of(keys, "model_flavour")
    flavours = FLAVOURS.get(OTHER_NAMES.get(word, word))
    if flavours is None and word:
        sheet.refuse("model_family", f"models of the family {word!r} are not in the catalogue. {LIST}")
        return
    flavours = flavours or {}
    if flavour is not None and flavours.get(flavour) is None:
        sheet.refuse(
            "model_flavour", f"{flavour}: {EDITS if flavour in flavours else f'it is not in the catalogue. {LIST}'}"
        )
        return
    model = flavours.get(flavour or "")
    if model is None and "pretrained_model_name_or_path" not in keys and "model" not in sheet.settings and word:
        sheet.refuse("model_family", f"{word}: its default flavour is not in the catalogue. {LIST}")
        return
    set_model(sheet, "pretrained_model_name_or_path", of_kind=model, kind_key="model_family")
    answer_kind(sheet, "model_flavour", "pretrained_model_name_or_path")


def _set_method(sheet: Sheet, folder: Path) -> None:
    keys = sheet.keys
    if keys.choice("model_type", ("full", "lora"), "full") == "full":
        sheet.set("model_type", "method.kind", "full")
        for key in ("lora_rank", "lora_alpha", "lora_dropout", "lora_type", "lycoris_config"):
            keys.answer(key, "not needed", "adapters only")
        return
    if keys.choice("lora_type", ("standard", "lycoris"), "standard") == "lycoris":
        _set_lycoris(sheet, folder)
        return
    kind = "dora" if keys.boolean("use_dora") else "lora"
    sheet.set("model_type", "method.kind", kind)
    for key in ("lora_type", "use_dora"):
        keys.answer(key, "translated", f"method.kind={kind}")
    rank = keys.integer("lora_rank", 16)
    sheet.set("lora_rank", "method.rank", rank)
    alpha = keys.number("lora_alpha", None)
    if alpha:
        sheet.set("lora_alpha", "method.alpha", alpha)
    dropout = keys.number("lora_dropout", None)
    if dropout is None:
        sheet.settings["method.dropout"] = SIMPLETUNER.adapter_dropout
        sheet.assume(f"lora_dropout is not set: {SIMPLETUNER.adapter_dropout}, its default in SimpleTuner")
    else:
        sheet.set("lora_dropout", "method.dropout", dropout)
    keys.answer("lycoris_config", "not needed", "for lora_type lycoris only")


def _set_lycoris(sheet: Sheet, folder: Path) -> None:
    keys = sheet.keys
    found = read_beside(sheet, "lycoris_config", folder)
    lycoris = found if isinstance(found, dict) else {"algo": "lokr", "factor": 16, "full_matrix": True}
    if not isinstance(found, dict):
        sheet.assume("the file of lycoris_config is not beside this one: LoKr, factor 16, whole matrices")
    algo = str(lycoris.get("algo", "lora")).lower()
    kind = {"lokr": "lokr", "loha": "loha", "lora": "lora", "locon": "lora"}.get(algo)
    if kind is None:
        sheet.refuse("lycoris_config", f"there is no adapter of the kind {algo!r}")
        return
    settings: dict[str, Any] = {"kind": kind}
    rank = lycoris.get("linear_dim")
    if isinstance(rank, int) and 1 <= rank <= _MOST_RANK:
        settings["rank"] = rank
    if kind == "lokr":
        factor = lycoris.get("factor", -1)
        settings["factor"] = factor if isinstance(factor, int) else -1
        settings["full_matrix"] = bool(lycoris.get("full_matrix")) or (isinstance(rank, int) and rank > _MOST_RANK)
    for name, value in settings.items():
        sheet.settings[f"method.{name}"] = value
    if isinstance(lycoris.get("apply_preset"), dict):
        sheet.unimitated.append("the layers that lycoris_config chooses: the attention projections are counted")
    for key in ("model_type", "lora_type"):
        keys.answer(key, "translated", f"method.kind={kind}")
    if not isinstance(found, dict):
        sheet.lacks("lycoris_config", "the file is not beside this one. Set method.factor and method.full_matrix")
    keys.answer("lycoris_config", "translated", ", ".join(f"method.{name}={value}" for name, value in settings.items()))
    for key in ("lora_rank", "lora_alpha", "lora_dropout"):
        keys.answer(key, "not needed", "lycoris_config decides")


_MOST_RANK = 4096


def _fit_weights(sheet: Sheet) -> None:
    """bf16 weights go with bf16 only; without it everything is fp32."""
    if sheet.settings.get("train.precision") == "bf16":
        sheet.settings.setdefault("train.weight_dtype", "bf16")
        return
    sheet.settings.pop("train.weight_dtype", None)
    sheet.settings.pop("optimizer.compensation", None)


def _set_length(sheet: Sheet) -> None:
    keys = sheet.keys
    steps = keys.integer("max_train_steps", 0, at_least=0)
    epochs = keys.integer("num_train_epochs", 0 if steps else 1, at_least=0)
    if steps:
        sheet.set("max_train_steps", "train.steps", steps)
        keys.answer("num_train_epochs", "not needed", "max_train_steps decides")
    elif epochs:
        sheet.set("num_train_epochs", "train.epochs", epochs)
        keys.answer("max_train_steps", "not needed", "num_train_epochs decides")
    else:
        keys.problems.append("max_train_steps: should be more than 0, or num_train_epochs should be")


def _set_betas(sheet: Sheet) -> None:
    keys = sheet.keys
    names = [("optimizer_beta1", "adam_beta1"), ("optimizer_beta2", "adam_beta2")]
    found = [next((keys.number(key, None) for key in pair if key in keys), None) for pair in names]
    if found == [None, None]:
        return
    usual = (0.9, 0.999)
    betas = [default if value is None else value for value, default in zip(found, usual, strict=True)]
    for pair in names:
        for key in pair:
            if key in keys:
                sheet.set(key, "optimizer.betas", betas)


def _set_ema(sheet: Sheet) -> None:
    keys = sheet.keys
    decay = keys.number("ema_decay", 0.995)
    if not keys.boolean("use_ema"):
        for key in ("use_ema", "ema_decay", "ema_device"):
            keys.answer(key, "same", "no EMA")
        return
    sheet.set("use_ema", "train.ema", {"decay": decay})
    keys.answer("ema_decay", "translated", f"train.ema.decay={decay}")
    if keys.choice("ema_device", ("cpu", "accelerator"), "cpu") == "cpu":
        sheet.set("ema_device", "levers.ema_offload", True)
    keys.answer("ema_device", "same", "on the device")


def _set_checkpointing(sheet: Sheet) -> None:
    keys = sheet.keys
    interval_keys = ("gradient_checkpointing_interval", "gradient_checkpointing_segment_stride")
    if not keys.boolean("gradient_checkpointing", default=True):
        sheet.set("gradient_checkpointing", "levers.gradient_checkpointing", 0.0)
        for key in interval_keys:
            keys.answer(key, "not needed", "without gradient checkpointing")
        return
    sheet.set("gradient_checkpointing", "levers.gradient_checkpointing", 1.0)
    interval = keys.integer(interval_keys[0], 0, at_least=0)
    stride = keys.integer(interval_keys[1], 0, at_least=0)
    meaning = SIMPLETUNER.intervals.get(sheet.family or "")
    if interval > 1 and meaning == "segments":
        sheet.set(interval_keys[0], "levers.checkpoint_segment", interval)
        if stride:
            sheet.set(interval_keys[1], "levers.checkpoint_stride", stride)
    elif interval > 1 and meaning == "every nth block":
        sheet.set(interval_keys[0], "levers.gradient_checkpointing", 1 / interval)
    elif interval > 1:
        why = "this family ignores it" if meaning == "ignored" else "what it does in this family was not read"
        sheet.lacks(interval_keys[0], f"{why}; every block is planned with checkpointing")
    for key in interval_keys:
        keys.answer(key, "same", "every block")
    if keys.boolean("gradient_checkpointing_offload_attention"):
        sheet.set("gradient_checkpointing_offload_attention", "levers.activation_offload", True)
        sheet.settings["levers.activation_offload_parts"] = "attention"


def _set_quantization(sheet: Sheet) -> None:
    keys = sheet.keys
    if sheet.settings.get("method.kind") == "full":
        keys.answer("base_model_precision", "not needed", "adapters only")
    set_quantizer(sheet, "base_model_precision", QUANTIZERS)
    if str(sheet.settings.get("quantize.denoiser", "none")) != "none":
        sheet.settings.update({f"quantize.{name}": list(v) for name, v in SIMPLETUNER.overrides["quantize"].items()})
    sheet.quantizes_by_torchao = "torchao" in str(keys.get("base_model_precision"))
    if "quanto" in str(keys.get("base_model_precision")):
        sheet.unimitated.append("the temporary tensors of quanto: those of torchao's int8 are counted")
    encoders = {name: "float8" if numbers == "float8-dynamic" else numbers for name, numbers in QUANTIZERS.items()}
    set_quantizer(sheet, "text_encoder_1_precision", encoders, "quantize.text_encoders")


def _set_rest(sheet: Sheet) -> None:
    keys = sheet.keys
    shift = keys.number("flow_schedule_shift", None)
    if shift:
        sheet.set("flow_schedule_shift", "objective.shift", shift)
    keys.answer("flow_schedule_shift", "same", "no shift of its own: the checkpoint's")
    backend = (text_of(keys, "dynamo_backend") or "no").lower()
    if backend == "inductor":
        sheet.set("dynamo_backend", "levers.compile", "regional")
    elif backend != "no":
        sheet.lacks("dynamo_backend", "blocks are compiled with inductor. Nearest: levers.compile=regional")
    for key, usual in (("loss_type", "l2"), ("grad_clip_method", "norm"), ("quantize_activations", "false")):
        if str(keys.get(key)).lower() == usual:
            keys.answer(key, "same", usual)
    tracker = (text_of(keys, "report_to") or "none").lower()
    if tracker in TRACKER_SPECS:
        sheet.set("report_to", "track", [tracker])
    elif tracker != "none":
        sheet.lacks("report_to", f"there is no tracker {tracker}")
