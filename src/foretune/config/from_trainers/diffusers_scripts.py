"""diffusers' example scripts: a file with the command line that starts one."""

from pathlib import Path

from foretune import catalog
from foretune.config.from_trainers.data_words import is_video, round_px, set_folders
from foretune.config.from_trainers.diffusers_keys import KNOWN, OTHERS, REFUSED, RULES, SCRIPTS, Script
from foretune.config.from_trainers.model_names import set_model
from foretune.config.from_trainers.sheet import Sheet, text_of
from foretune.config.from_trainers.words import fill_lr, set_optimizer, set_precision, set_schedule
from foretune.core.trackers import TRACKER_SPECS

__all__ = ["KNOWN", "OTHERS", "RULES", "translate"]

_TRAINED_WORDS = ("train_text_encoder_ti", "train_text_encoder_ti_frac", "modifier_token")
_DENSITIES = {"none": "uniform", "logit_normal": "logit_normal", "mode": "mode"}
_EMA_DECAY = 0.9999


def translate(sheet: Sheet, folder: Path) -> None:
    """Fills in the sheet."""
    del folder  # it names no files that are read
    script = _script(sheet)
    if script is None:
        return
    key = "pretrained_model_name_or_path"
    if (text_of(sheet.keys, key) or "").startswith("$"):
        sheet.lacks(key, "a variable that the file does not set")
        sheet.keys.answer(key, "not supported", "a variable that the file does not set")
    set_model(sheet, _model_key(sheet, key), of_kind=script.model)
    _set_weights(sheet, script)
    _set_optimizer(sheet, script)
    _set_method(sheet, script)
    sheet.apply(RULES)
    if script.method == "full":
        sheet.settings.pop("method.dropout", None)
    _set_length(sheet, script)
    _set_data(sheet, script)
    _set_encoders(sheet, script)
    _set_objective(sheet)
    _set_rest(sheet)
    fill_lr(sheet)


def _model_key(sheet: Sheet, key: str) -> str:
    """A variable that is not set names no model."""
    return "" if (text_of(sheet.keys, key) or "").startswith("$") else key


def _script(sheet: Sheet) -> Script | None:
    keys = sheet.keys
    name = text_of(keys, "script") or ""
    reason = next((why for part, why in REFUSED.items() if part in name), None)
    if name not in SCRIPTS:
        sheet.refuse(
            "script", reason or f"what {name} trains is not known here, or its models are not in the catalogue"
        )
        return None
    if keys.boolean("with_prior_preservation"):
        sheet.refuse("with_prior_preservation", "prior preservation trains two images for each, which is not supported")
    keys.answer("with_prior_preservation", "not needed", "off")
    for key in _TRAINED_WORDS:
        if key in keys:
            sheet.refuse(key, "textual inversion trains words, not weights; it is not supported")
    keys.answer("script", "translated", f"method.kind={SCRIPTS[name].method}")
    return None if sheet.refusals else SCRIPTS[name]


def _set_weights(sheet: Sheet, script: Script) -> None:
    keys = sheet.keys
    precision = set_precision(sheet, "mixed_precision", "no")
    dialect = sheet.program.dialect
    if precision == "fp32" and keys.boolean("allow_tf32"):
        sheet.set("allow_tf32", "train.precision", "tf32")
    keys.answer("allow_tf32", "same", "matrix products in 16 bits")
    weights = dialect.full_weights if script.method == "full" else dialect.adapter_weights.get(precision, "fp32")
    sheet.settings["train.weight_dtype"] = weights


def _set_optimizer(sheet: Sheet, script: Script) -> None:
    keys = sheet.keys
    set_optimizer(sheet, "optimizer", {}, "AdamW")
    if keys.boolean("use_8bit_adam") and sheet.settings["optimizer.kind"] == "adamw":
        sheet.set("use_8bit_adam", "optimizer.kind", "adamw8bit")
    keys.answer("use_8bit_adam", "not needed", "for AdamW only")
    rate = keys.number("learning_rate", script.lr)
    if rate:
        sheet.set("learning_rate", "optimizer.lr", rate)
    set_schedule(sheet, "lr_scheduler")
    decay = keys.number("adam_weight_decay", script.weight_decay)
    sheet.set("adam_weight_decay", "optimizer.weight_decay", decay)
    if "adam_beta1" in keys or "adam_beta2" in keys:
        betas = [keys.number("adam_beta1", 0.9), keys.number("adam_beta2", 0.999)]
        for key in ("adam_beta1", "adam_beta2"):
            sheet.set(key, "optimizer.betas", betas)


def _set_method(sheet: Sheet, script: Script) -> None:
    keys = sheet.keys
    if script.method == "full":
        sheet.settings["method.kind"] = "full"
        for key in ("rank", "lora_rank", "lora_alpha", "lora_dropout"):
            keys.answer(key, "not needed", "adapters only")
        return
    sheet.settings["method.kind"] = "dora" if keys.boolean("use_dora") else "lora"
    keys.answer("use_dora", "translated", f"method.kind={sheet.settings['method.kind']}")
    key = "lora_rank" if "lora_rank" in keys else "rank"
    rank = keys.integer(key, script.rank)
    sheet.set(key, "method.rank", rank)
    if key not in keys:
        sheet.assume(f"rank is not set: {rank}, its default")
    alpha = keys.number("lora_alpha", None)
    if alpha:
        sheet.set("lora_alpha", "method.alpha", alpha)


def _set_length(sheet: Sheet, script: Script) -> None:
    keys = sheet.keys
    sheet.set("train_batch_size", "train.batch_size", keys.integer("train_batch_size", script.batch))
    if "train_batch_size" not in keys:
        sheet.assume(f"train_batch_size is not set: {script.batch}, its default")
    key = "num_epochs" if "num_epochs" in keys else "num_train_epochs"
    if "max_train_steps" in keys:
        sheet.set("max_train_steps", "train.steps", keys.integer("max_train_steps", 1))
        keys.answer(key, "not needed", "max_train_steps decides")
        return
    sheet.set(key, "train.epochs", keys.integer(key, script.epochs))


def _set_data(sheet: Sheet, script: Script) -> None:
    keys = sheet.keys
    names = ("instance_data_dir", "instance_data_root", "train_data_dir")
    key = next((name for name in names if name in keys), None)
    path = None if key is None else text_of(keys, key)
    repeats = keys.integer("repeats", 1)
    folders = [] if path is None or path.startswith("$") else [(path, repeats)]
    set_folders(sheet, folders)
    if key is not None and folders:
        keys.answer(key, "translated", f"data.path={path}")
    if key is not None:
        sheet.lacks(key, "a variable that the file does not set. Set data.path")
    keys.answer("repeats", "translated", f"data.repeats={repeats}")
    sheet.lacks(
        "dataset_name", "datasets are read from folders: download it, and set data.kind=huggingface with its path"
    )
    if script.has_captions or "caption_column" not in keys:
        keys.answer("caption_column", "not needed", "captions are `name.txt` beside `name.png`")
    if is_video(sheet):
        _set_clips(sheet)
    else:
        px = round_px(keys.integer("resolution", script.resolution))
        sheet.set("resolution", "data.resolution", px)
    crop = keys.boolean("center_crop", default=script.method == "lora" and not script.has_captions)
    sheet.set("center_crop", "data.crop", "center" if crop else "random")
    if "max_sequence_length" in keys:
        sheet.set("max_sequence_length", "data.max_text_tokens", keys.integer("max_sequence_length", 512, at_least=8))


def _set_clips(sheet: Sheet) -> None:
    keys = sheet.keys
    width, height = keys.integer("width", 720), keys.integer("height", 480)
    for key in ("width", "height"):
        sheet.set(key, "data.resolution", f"{width}x{height}")
    sheet.set("max_num_frames", "data.num_frames", keys.integer("max_num_frames", 49))
    if "fps" in keys:
        sheet.set("fps", "data.fps", keys.number("fps", 8.0))


def _set_encoders(sheet: Sheet, script: Script) -> None:
    """What stays on the device beside the denoiser."""
    keys = sheet.keys
    if sheet.family is not None and not catalog.family_facts(sheet.family).has_latents:
        return
    latents = script.caches or keys.boolean("cache_latents")
    sheet.set("cache_latents", "levers.cache_latents", latents)
    own_captions = script.has_captions or "caption_column" in keys
    text = script.caches or not (own_captions or script.keeps_text or keys.boolean("train_text_encoder"))
    text = text or keys.boolean("pre_compute_text_embeddings")
    sheet.settings["levers.cache_text"] = text
    for key in ("caption_column", "pre_compute_text_embeddings"):
        keys.answer(key, "translated", f"levers.cache_text={str(text).lower()}")
    if keys.boolean("train_text_encoder"):
        sheet.unimitated.append("the training of text encoders")
    if not latents:
        sheet.assume("images are encoded in each step, and the autoencoder stays on the device")
    if not text:
        sheet.assume("captions are encoded in each step, and the text encoders stay on the device")


def _set_objective(sheet: Sheet) -> None:
    keys = sheet.keys
    flows = sheet.family is not None and catalog.family_facts(sheet.family).is_flow_matching
    if not flows:
        for name in ("guidance_scale", "logit_mean", "logit_std", "mode_scale"):
            sheet.settings.pop(f"objective.{name}", None)
            keys.answer(name, "not needed", "flow matching only")
        keys.answer("weighting_scheme", "not needed", "flow matching only")
        return
    word = (text_of(keys, "weighting_scheme") or "").lower()
    if word in _DENSITIES:
        sheet.set("weighting_scheme", "objective.timestep_density", _DENSITIES[word])
    elif word in ("sigma_sqrt", "cosmap"):
        sheet.set("weighting_scheme", "objective.weighting", word)


def _set_rest(sheet: Sheet) -> None:
    keys = sheet.keys
    checkpointed = keys.boolean("gradient_checkpointing")
    sheet.set("gradient_checkpointing", "levers.gradient_checkpointing", float(checkpointed))
    if keys.boolean("use_ema"):
        sheet.set("use_ema", "train.ema", {"decay": _EMA_DECAY})
        if keys.boolean("offload_ema"):
            sheet.set("offload_ema", "levers.ema_offload", True)
    if keys.boolean("do_fp8_training"):
        sheet.set("do_fp8_training", "quantize.denoiser", "float8-training")
    tracker = (text_of(keys, "report_to") or "none").lower()
    if tracker in TRACKER_SPECS:
        sheet.set("report_to", "track", [tracker])
    elif tracker != "none":
        sheet.lacks("report_to", f"there is no tracker {tracker}")
    value = keys.get("validation_prompts")
    prompts = (
        [str(one) for one in value] if isinstance(value, list) else [str(value)] if value not in (None, True) else []
    )
    if prompts:
        sheet.set("validation_prompts", "validate.prompts", prompts)
