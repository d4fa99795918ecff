"""kohya's sd-scripts: a TOML file for --config_file, or a command line."""

import re
from pathlib import Path
from typing import Any

from foretune import catalog
from foretune.config.from_trainers.kohya_data import set_data
from foretune.config.from_trainers.kohya_keys import (
    KNOWN,
    MODULES,
    NO_TEXTUAL_INVERSION,
    OTHER_MODULES,
    OTHERS,
    REFUSED_SCRIPTS,
    RULES,
    SCRIPTS,
)
from foretune.config.from_trainers.model_names import LIST, set_model
from foretune.config.from_trainers.sheet import Sheet, text_of
from foretune.config.from_trainers.words import fill_lr, set_optimizer, set_precision, set_schedule
from foretune.core.trackers import TRACKER_SPECS

__all__ = ["KNOWN", "OTHERS", "RULES", "translate"]

_NAME_IT = "Name the model: foretune plan FILE model=sdxl-unet"
_MOST_SHARE = 1
_DENSITIES = {
    "uniform": "uniform",
    "sigmoid": "logit_normal",
    "shift": "logit_normal",
    "flux_shift": "logit_normal",
    "nextdit_shift": "logit_normal",
}
_WEIGHTINGS = {"logit_normal": "logit_normal", "mode": "mode", "uniform": "uniform", "none": "uniform"}


def translate(sheet: Sheet, folder: Path) -> None:
    """Fills in the sheet."""
    keys = sheet.keys
    if any(key == "datasets" or key.startswith(("datasets.", "general.")) for key in keys.unanswered()):
        sheet.refuse("datasets", "this is a dataset config. Name it in the options: dataset_config, and import those")
        return
    kind = _kind(sheet)
    if sheet.refusals:
        return
    set_precision(sheet, "mixed_precision", "no")
    _set_weights(sheet)
    _set_optimizer(sheet)
    if keys.boolean("fused_backward_pass"):
        keys.answer("max_grad_norm", "not needed", "with fused_backward_pass there is never a norm of all gradients")
    sheet.apply(RULES)
    _set_method(sheet, kind)
    _set_length(sheet)
    _set_lr(sheet)
    _set_objective(sheet)
    _set_levers(sheet)
    _set_rest(sheet)
    set_data(sheet, folder)
    fill_lr(sheet)


def _kind(sheet: Sheet) -> str:
    """What is trained: "network" or "full"; sets the model."""
    keys = sheet.keys
    script, module = text_of(keys, "script"), text_of(keys, "network_module")
    if script is not None and script in REFUSED_SCRIPTS:
        sheet.refuse("script", REFUSED_SCRIPTS[script])
    for key in ("token_string", "init_word", "num_vectors_per_token"):
        if key in keys and not sheet.refusals:
            sheet.refuse(key, NO_TEXTUAL_INVERSION)
    for key in ("cond_emb_dim", "controlnet_model_name_or_path"):
        if key in keys:
            sheet.refuse(key, "ControlNets cannot be trained here")
    if keys.get("reg_data_dir"):
        sheet.refuse("reg_data_dir", "prior preservation is not supported; leave out the regularisation images")
    if keys.boolean("network_train_text_encoder_only"):
        sheet.refuse("network_train_text_encoder_only", "text encoders cannot be trained here")
    if sheet.refusals:
        return "none"
    kind, model = SCRIPTS.get(script or "", ("network" if module else "full", None))
    keys.answer("script", "translated", f"method.kind={'full' if kind == 'full' else 'lora'}")
    if script is not None and script not in SCRIPTS:
        sheet.refuse("script", f"what {script} trains is not known here")
    elif (script is not None and model is None) or module in OTHER_MODULES:
        sheet.refuse("script" if script else "network_module", f"its models are not in the catalogue. {LIST}")
    else:
        _set_model(sheet, model or MODULES.get(module or "", ("", None))[1] or _guessed(sheet))
    return kind


def _guessed(sheet: Sheet) -> str | None:
    """The denoiser that other keys of a file tell, which does not name its script."""
    keys = sheet.keys
    named = (text_of(keys, "pretrained_model_name_or_path") or "").lower()
    of_sdxl = ("cache_text_encoder_outputs", "learning_rate_te1", "learning_rate_te2", "no_half_vae", "block_lr")
    signs = (
        (keys.boolean("v2"), "sd2-unet"),
        ("t5xxl" in keys and "clip_g" in keys, "sd3-medium"),
        ("t5xxl" in keys or "ae" in keys, "flux.1-dev"),
        ("gemma2" in keys, "lumina-image-2.0"),
        (re.search(r"xl|pony|illustrious|noob", named) or any(key in keys for key in of_sdxl), "sdxl-unet"),
        (re.search(r"v1-5|sd15|sd1\.5|sd_1|1-5|1\.5", named) or "clip_skip" in keys, "sd1.5-unet"),
    )
    return next((model for is_there, model in signs if is_there), None)


def _set_model(sheet: Sheet, kind: str | None) -> None:
    keys, key = sheet.keys, "pretrained_model_name_or_path"
    named = (text_of(keys, key) or "").lower()
    if (text_of(keys, "model_type") or "").lower() == "chroma":
        kind = "chroma"
        keys.answer("model_type", "translated", "model=chroma")
    if keys.boolean("v2") and kind == "sd1.5-unet":
        kind = "sd2-unet"
    keys.answer("v2", "translated", f"model={kind}")
    if kind == "flux.1-dev" and "schnell" in named:
        kind = "flux.1-schnell"
    if kind == "sd3-medium" and "large" in named:
        kind = "sd3.5-large"
    elif kind == "sd3-medium" and re.search(r"3\.5|35|3_5", named):
        kind = "sd3.5-medium"
    if kind is None and "model" not in sheet.settings:
        sheet.refuse(key, f"the file does not tell which script it is for. {_NAME_IT}")
        return
    set_model(sheet, key, of_kind=kind)
    if text_of(keys, "script") is None and sheet.model is not None:
        sheet.assume(f"the file does not name its script: the one for {sheet.model}")


def _set_weights(sheet: Sheet) -> None:
    keys = sheet.keys
    if keys.boolean("full_bf16") and sheet.settings.get("train.precision") == "bf16":
        sheet.set("full_bf16", "train.weight_dtype", "bf16")
    elif keys.boolean("full_bf16"):
        keys.problems.append("full_bf16: goes with mixed_precision bf16")


def _set_optimizer(sheet: Sheet) -> None:
    keys = sheet.keys
    for key, kind in (("use_8bit_adam", "adamw8bit"), ("use_lion_optimizer", "lion")):
        if keys.boolean(key) and "optimizer_type" not in keys:
            sheet.set(key, "optimizer.kind", kind)
    if "optimizer.kind" not in sheet.settings:
        set_optimizer(sheet, "optimizer_type", {}, "AdamW")
    for name, value in _arguments(sheet, "optimizer_args").items():
        number = _number(value)
        if name == "weight_decay" and number is not None:
            sheet.set("optimizer_args", "optimizer.weight_decay", number)
    sheet.lacks("optimizer_args", "arguments other than weight_decay are not translated")
    set_schedule(sheet, "lr_scheduler")


def _arguments(sheet: Sheet, key: str) -> dict[str, str]:
    """A list of name=value."""
    value: Any = sheet.keys.get(key)
    listed = value if isinstance(value, list) else [] if value in (None, True) else [value]
    pairs = [str(one).partition("=") for one in listed]
    return {name.strip(): text.strip() for name, _, text in pairs}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _set_method(sheet: Sheet, kind: str) -> None:
    keys = sheet.keys
    if kind == "full":
        sheet.settings["method.kind"] = "full"
        for key in ("network_module", "network_dim", "network_alpha", "network_dropout", "network_args"):
            keys.answer(key, "not needed", "adapters only")
        if keys.boolean("train_text_encoder"):
            sheet.lacks("train_text_encoder", "text encoders are not trained")
            sheet.unimitated.append("the text encoders' gradients and optimizer states")
        return
    module = text_of(keys, "network_module") or "networks.lora"
    arguments = _arguments(sheet, "network_args")
    method = MODULES[module][0] if module in MODULES else None
    if module == "lycoris.kohya":
        method = {"lokr": "lokr", "loha": "loha", "lora": "lora", "locon": "lora"}.get(arguments.get("algo", "lora"))
        keys.answer("network_args", "translated", f"method.kind={method}")
    if method is None:
        sheet.refuse("network_module", f"there is no adapter like {module}")
        return
    sheet.set("network_module", "method.kind", method)
    sheet.settings["method.kind"] = method
    sheet.set("network_dim", "method.rank", keys.integer("network_dim", 4))
    alpha = keys.number("network_alpha", 1.0)
    sheet.set("network_alpha", "method.alpha", alpha or 1.0)
    dropout = keys.number("network_dropout", None)
    if dropout:
        sheet.set("network_dropout", "method.dropout", dropout)
    if keys.get("network_args"):
        sheet.lacks("network_args", "its arguments are not translated")
    if not keys.boolean("network_train_unet_only"):
        sheet.unimitated.append(
            "the adapters of text encoders, which sd-scripts trains unless network_train_unet_only is set"
        )
    keys.answer("network_train_unet_only", "same", "adapters of the denoiser only")
    sheet.unimitated.append(
        "adapters of layers other than the attention projections; sd-scripts has them on more layers"
    )


def _set_length(sheet: Sheet) -> None:
    keys = sheet.keys
    epochs = keys.integer("max_train_epochs", 0, at_least=0)
    if epochs:
        sheet.set("max_train_epochs", "train.epochs", epochs)
        keys.answer("max_train_steps", "not needed", "max_train_epochs decides")
        return
    steps = keys.integer("max_train_steps", 1600)
    sheet.set("max_train_steps", "train.steps", steps)
    if "max_train_steps" not in keys:
        sheet.assume("max_train_steps is not set: 1600, its default in kohya's sd-scripts")


def _set_lr(sheet: Sheet) -> None:
    keys = sheet.keys
    key = "unet_lr" if "unet_lr" in keys else "learning_rate"
    rate = keys.number(key, 2e-6)
    if rate:
        sheet.set(key, "optimizer.lr", rate)
    keys.answer("learning_rate", "not needed", "unet_lr decides")
    warmup = keys.number("lr_warmup_steps", 0.0) or 0.0
    steps = sheet.settings.get("train.steps")
    if 0 < warmup < _MOST_SHARE and not isinstance(steps, int):
        sheet.lacks("lr_warmup_steps", "a share of the steps, whose number is not known. Set optimizer.warmup_steps")
        return
    whole = round(warmup * steps) if 0 < warmup < _MOST_SHARE and isinstance(steps, int) else round(warmup)
    sheet.set("lr_warmup_steps", "optimizer.warmup_steps", whole)


def _set_objective(sheet: Sheet) -> None:
    keys = sheet.keys
    names = ("timestep_sampling", "weighting_scheme", "discrete_flow_shift", "training_shift")
    flows = sheet.family is not None and catalog.family_facts(sheet.family).is_flow_matching
    if not flows:
        for key in (*names, "guidance_scale", "logit_mean", "logit_std"):
            keys.answer(key, "not needed", "flow matching only")
        return
    for key, known in (("timestep_sampling", _DENSITIES), ("weighting_scheme", _WEIGHTINGS)):
        word = (text_of(keys, key) or "").lower()
        if word in known:
            sheet.set(key, "objective.timestep_density", known[word])
        elif word in ("sigma_sqrt", "cosmap"):
            sheet.set(key, "objective.weighting", word)
        elif word == "sigma":
            keys.answer(key, "same", "weighting_scheme decides")
        elif word:
            sheet.lacks(key, f"there is no density {word}. Set objective.timestep_density")
    shift = keys.number("discrete_flow_shift", None)
    if shift:
        sheet.set("discrete_flow_shift", "objective.shift", shift)


def _set_levers(sheet: Sheet) -> None:
    keys = sheet.keys
    is_full = sheet.settings.get("method.kind") == "full"
    sheet.set("gradient_checkpointing", "levers.gradient_checkpointing", float(keys.boolean("gradient_checkpointing")))
    for name, lever in (("cache_latents", "cache_latents"), ("cache_text_encoder_outputs", "cache_text")):
        cached = keys.boolean(name) or keys.boolean(f"{name}_to_disk")
        sheet.settings[f"levers.{lever}"] = cached
        for key in (name, f"{name}_to_disk"):
            keys.answer(key, "translated", f"levers.{lever}={str(cached).lower()}")
    swapped = keys.integer("blocks_to_swap", 0, at_least=0)
    if swapped and is_full:
        sheet.lacks("blocks_to_swap", "blocks are swapped with adapters only. Nearest: levers.optimizer_offload=true")
        sheet.unimitated.append("blocks that are swapped: all are counted on the device")
    elif swapped:
        sheet.set("blocks_to_swap", "levers.block_swap", swapped)
    for key in ("fp8_base", "fp8_base_unet"):
        if keys.boolean(key) and not is_full:
            sheet.set(key, "quantize.denoiser", "float8")
    if keys.boolean("fused_backward_pass"):
        sheet.set("fused_backward_pass", "levers.fused_backward", True)
        sheet.settings["train.max_grad_norm"] = None
    if keys.boolean("torch_compile"):
        sheet.set("torch_compile", "levers.compile", "regional")


def _set_rest(sheet: Sheet) -> None:
    keys = sheet.keys
    tracker = (text_of(keys, "log_with") or "").lower()
    if tracker in TRACKER_SPECS:
        sheet.set("log_with", "track", [tracker])
    devices = keys.integer("accelerate.num_processes", 1)
    sheet.set("accelerate.num_processes", "parallel.devices", devices)
    if devices == 1:
        sheet.settings.pop("parallel.devices")
    if str(keys.get("loss_type")).lower() == "l2":
        keys.answer("loss_type", "same", "l2")
    if str(keys.get("model_prediction_type")).lower() == "raw":
        keys.answer("model_prediction_type", "same", "the model's output is the velocity")
