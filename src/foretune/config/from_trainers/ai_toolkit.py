"""ai-toolkit's YAML files: one process of `config.process`, which is a training."""

from pathlib import Path
from typing import Any

from foretune import catalog
from foretune.config.from_trainers.ai_toolkit_keys import (
    ARCHITECTURES,
    KNOWN,
    OPTIMIZERS,
    OTHER_SIZES,
    OTHERS,
    PROCESSES,
    QUANTIZERS,
    RULES,
    SWITCHES,
)
from foretune.config.from_trainers.data_words import num_blocks, round_px, set_folders
from foretune.config.from_trainers.model_names import LIST, answer_kind, set_model
from foretune.config.from_trainers.sheet import Sheet, text_of
from foretune.config.from_trainers.words import fill_lr, set_optimizer, set_precision, set_quantizer, set_schedule

__all__ = ["KNOWN", "OTHERS", "RULES", "translate"]

_DENSITIES = {"sigmoid": "logit_normal", "linear": "uniform", "uniform": "uniform", "shift": "logit_normal"}
_EDITS = "it trains on pairs of images, which is not supported"


def translate(sheet: Sheet, folder: Path) -> None:
    """Fills in the sheet."""
    del folder  # it names no files that are read
    _refuse(sheet)
    _set_model(sheet)
    precision = set_precision(sheet, "train.dtype", "fp32")
    _set_method(sheet, precision)
    set_optimizer(sheet, "train.optimizer", OPTIMIZERS, "adamw")
    set_schedule(sheet, "train.lr_scheduler")
    sheet.apply(RULES)
    _set_ema(sheet)
    _set_levers(sheet)
    _set_quantization(sheet)
    _set_objective(sheet)
    _set_data(sheet)
    _set_prompts(sheet)
    fill_lr(sheet)


def _refuse(sheet: Sheet) -> None:
    keys = sheet.keys
    process = text_of(keys, "type")
    if process == "textual_inversion_trainer":
        sheet.refuse("type", "textual inversion trains words, not weights; it is not supported")
    elif process not in PROCESSES:
        sheet.refuse(
            "type", f"the process {process!r} is no training that is supported; these are: {', '.join(PROCESSES)}"
        )
    for key in [key for key in keys.unanswered() if key.startswith("adapter.")][:1]:
        sheet.refuse(key, "adapters of the kinds IP-Adapter, T2I and ControlNet cannot be trained here")
    for key in ("train.diff_output_preservation", "train.blank_prompt_preservation"):
        if keys.boolean(key):
            sheet.refuse(key, "prior preservation is not supported; each step passes twice through the model")
    for key in list(keys.unanswered()):
        _, _, name = key.rpartition(".")
        if not key.startswith("datasets."):
            continue
        if name.startswith(("control_path", "inpaint_path")) and keys.get(key):
            sheet.refuse(key, _EDITS)
        if name in ("is_reg", "prior_reg") and keys.boolean(key):
            sheet.refuse(key, "prior preservation is not supported; leave out the regularisation images")


def _set_model(sheet: Sheet) -> None:
    keys = sheet.keys
    named, arch = text_of(keys, "model.name_or_path"), text_of(keys, "model.arch")
    if named is not None and any(part in named.lower() for part in OTHER_SIZES):
        sheet.refuse("model.name_or_path", f"{named} is not in the catalogue. {LIST}")
        return
    kind: str | None = None
    if arch is not None:
        word = arch.lower()
        kind = ARCHITECTURES.get(word, ARCHITECTURES.get(word.partition(":")[0]))
        if kind is None:
            sheet.refuse("model.arch", f"models of the kind {arch!r} are not in the catalogue. {LIST}")
            return
    for switch, model in SWITCHES.items():
        key = f"model.{switch}"
        if keys.boolean(key):
            kind = kind or model
        else:
            keys.answer(key, "not needed", "off")
    if kind is None and arch is None:
        kind = "sd1.5-unet"
        sheet.assume("model.arch is not set: Stable Diffusion 1.5, as in ai-toolkit")
    set_model(sheet, "model.name_or_path", of_kind=kind, kind_key="model.arch")
    for switch in SWITCHES:
        answer_kind(sheet, f"model.{switch}", "model.name_or_path")


def _set_method(sheet: Sheet, precision: str) -> None:
    keys = sheet.keys
    kind = text_of(keys, "network.type")
    if not any(key.startswith("network.") for key in keys.unanswered()):
        sheet.settings["method.kind"] = "full"
        if precision == "bf16":
            sheet.settings["train.weight_dtype"] = "bf16"
        sheet.assume("there is no network: full fine-tuning, of weights in the dtype of the training")
        return
    known = {"lora": "lora", "locon": "lora", "lokr": "lokr"}
    method = known.get((kind or "lora").lower())
    if method is None:
        sheet.refuse("network.type", f"there is no adapter of the kind {kind!r}")
        return
    sheet.set("network.type", "method.kind", method)
    sheet.settings["method.kind"] = method
    if method == "lokr":
        _set_lokr(sheet)
        return
    rank_key = "network.rank" if "network.rank" in keys else "network.linear"
    sheet.set(rank_key, "method.rank", keys.integer(rank_key, 4))
    alpha_key = "network.linear_alpha" if "network.linear_alpha" in keys else "network.alpha"
    alpha = keys.number(alpha_key, 1.0)
    if alpha:
        sheet.set(alpha_key, "method.alpha", alpha)
    keys.answer("network.linear", "not needed", "network.rank decides")
    keys.answer("network.alpha", "not needed", "network.linear_alpha decides")
    dropout = keys.number("network.dropout", None)
    if dropout:
        sheet.set("network.dropout", "method.dropout", dropout)
    for key, setting in (
        ("network.pretrained_lora_path", "method.start_from"),
        ("model.assistant_lora_path", "method.training_adapter"),
    ):
        sheet.lacks(key, f"a path is not followed. Export that adapter and set {setting} to its folder")
    sheet.unimitated.append(
        "adapters of layers other than the attention projections; ai-toolkit has them on more layers"
    )


def _set_lokr(sheet: Sheet) -> None:
    keys = sheet.keys
    factor = text_of(keys, "network.lokr_factor")
    sheet.set("network.lokr_factor", "method.factor", int(factor) if factor and factor.lstrip("-").isdigit() else -1)
    whole = keys.boolean("network.lokr_full_rank", default=True)
    sheet.set("network.lokr_full_rank", "method.full_matrix", whole)
    for key in ("network.linear", "network.rank", "network.linear_alpha", "network.alpha"):
        if not whole and key in ("network.linear", "network.rank") and key in keys:
            sheet.set(key, "method.rank", keys.integer(key, 4))
        keys.answer(key, "not needed", "the matrices are whole")


def _set_ema(sheet: Sheet) -> None:
    keys = sheet.keys
    use, decay_key = "train.ema_config.use_ema", "train.ema_config.ema_decay"
    decay = keys.number(decay_key, 0.999)
    if keys.boolean(use):
        sheet.set(use, "train.ema", {"decay": decay})
        keys.answer(decay_key, "translated", f"train.ema.decay={decay}")
    for key in (use, decay_key):
        keys.answer(key, "same", "no EMA")


def _set_levers(sheet: Sheet) -> None:
    keys = sheet.keys
    checkpointed = keys.boolean("train.gradient_checkpointing", default=True)
    sheet.set("train.gradient_checkpointing", "levers.gradient_checkpointing", float(checkpointed))
    text_keys = ("train.cache_text_embeddings", "train.unload_text_encoder")
    cached = [key for key in text_keys if keys.boolean(key)]
    cached += [k for k in list(keys.unanswered()) if k.endswith(".cache_text_embeddings") and keys.boolean(k)]
    for key in cached:
        sheet.set(key, "levers.cache_text", True)
    if not cached:
        sheet.settings["levers.cache_text"] = False
        sheet.assume("captions are encoded in each step, and the text encoders stay on the device")
    for key in text_keys:
        if key in keys:
            keys.answer(key, "translated", "levers.cache_text=false")
    if keys.boolean("model.compile"):
        sheet.set("model.compile", "levers.compile", "regional")
    offload, share_key = "model.layer_offloading", "model.layer_offloading_transformer_percent"
    share = keys.number(share_key, 1.0)
    if keys.boolean(offload) and sheet.model is not None:
        blocks = round(num_blocks(sheet.model) * min(1.0, share or 0.0))
        sheet.set(offload, "levers.block_swap", blocks, "counted in blocks instead of layers")
        keys.answer(share_key, "translated", f"levers.block_swap={blocks}")
    keys.answer(share_key, "not needed", "without layer_offloading")


def _set_quantization(sheet: Sheet) -> None:
    keys = sheet.keys
    quantized = keys.boolean("model.quantize")
    encoders = keys.boolean("model.quantize_te", default=quantized)
    for is_on, key, kind_key, setting in (
        (quantized, "model.quantize", "model.qtype", "quantize.denoiser"),
        (encoders, "model.quantize_te", "model.qtype_te", "quantize.text_encoders"),
    ):
        if not is_on:
            keys.answer(key, "same", "not quantised")
            keys.answer(kind_key, "not needed", "not quantised")
        elif kind_key in keys:
            set_quantizer(sheet, kind_key, QUANTIZERS, setting)
            keys.answer(key, "translated", f"{setting}={sheet.settings.get(setting)}")
        else:
            sheet.set(key, setting, "float8", "qfloat8, its default")
    if quantized:
        sheet.unimitated.append("the temporary tensors of quanto: those of torchao are counted")


def _set_objective(sheet: Sheet) -> None:
    key = "train.timestep_type"
    word = text_of(sheet.keys, key)
    flows = sheet.family is not None and catalog.family_facts(sheet.family).is_flow_matching
    if word is None:
        return
    if not flows:
        sheet.keys.answer(key, "not needed", "flow matching only")
    elif word.lower() in _DENSITIES:
        sheet.set(key, "objective.timestep_density", _DENSITIES[word.lower()])
    else:
        sheet.lacks(key, f"there is no density {word}. Set objective.timestep_density")


def _set_data(sheet: Sheet) -> None:
    keys = sheet.keys
    numbers = sorted({key.split(".")[1] for key in keys.unanswered() if key.startswith("datasets.")}, key=int)
    folders, sides, frames, caches = [], [], [], []
    for number in numbers:
        start = f"datasets.{number}"
        path = text_of(keys, f"{start}.folder_path")
        if path is not None:
            folders.append((path, keys.integer(f"{start}.num_repeats", 1)))
        sides += _sides(sheet, f"{start}.resolution")
        frames.append(keys.integer(f"{start}.num_frames", 1))
        caches.append(keys.boolean(f"{start}.cache_latents") or keys.boolean(f"{start}.cache_latents_to_disk"))
        for name, setting in (("folder_path", "data.path"), ("num_repeats", "data.repeats")):
            keys.answer(f"{start}.{name}", "translated", setting)
        _set_augmentation(sheet, start)
    set_folders(sheet, folders)
    sheet.settings["levers.cache_latents"] = bool(caches) and all(caches)
    for number in numbers:
        for end in ("", "_to_disk"):
            cached = str(sheet.settings["levers.cache_latents"]).lower()
            keys.answer(f"datasets.{number}.cache_latents{end}", "translated", f"levers.cache_latents={cached}")
    px = round_px(max(sides, default=512.0))
    sheet.settings["data.resolution"] = px
    if len(set(sides)) > 1:
        sheet.assume(f"of several resolutions the largest is taken: {px} px")
    if catalogue_is_video(sheet):
        sheet.settings["data.num_frames"] = max(frames, default=1)
    for number in numbers:
        keys.answer(f"datasets.{number}.resolution", "translated", f"data.resolution={px}")
        keys.answer(f"datasets.{number}.num_frames", "translated", f"data.num_frames={max(frames, default=1)}")
    trigger = text_of(keys, "trigger_word")
    if trigger is not None and "data.folders" not in sheet.settings:
        sheet.set("trigger_word", "data.trigger", trigger)
    elif trigger is not None:
        for entry in sheet.settings["data.folders"]:
            entry["trigger"] = trigger
        keys.answer("trigger_word", "translated", "data.folders: trigger")


def catalogue_is_video(sheet: Sheet) -> bool:
    return sheet.family is not None and catalog.family_facts(sheet.family).is_video


def _sides(sheet: Sheet, key: str) -> list[float]:
    value: Any = sheet.keys.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    wrong = [one for one in values if isinstance(one, bool) or not isinstance(one, (int, float)) or one <= 0]
    if wrong:
        sheet.keys.problems.append(f"{key}: should be pixels, or a list of them (found {wrong[0]!r})")
    return [float(one) for one in values if one not in wrong]


def _set_augmentation(sheet: Sheet, start: str) -> None:
    keys = sheet.keys
    dropout = keys.number(f"{start}.caption_dropout_rate", None)
    if dropout is not None:
        sheet.set(f"{start}.caption_dropout_rate", "data.caption_dropout", dropout)
    if keys.boolean(f"{start}.flip_x"):
        sheet.set(f"{start}.flip_x", "data.flip", 0.5)
    if keys.boolean(f"{start}.random_crop"):
        sheet.set(f"{start}.random_crop", "data.crop", "random")


def _set_prompts(sheet: Sheet) -> None:
    keys = sheet.keys
    value = keys.get("sample.prompts")
    listed = [str(one) for one in value if isinstance(one, str)] if isinstance(value, list) else []
    if listed:
        sheet.set("sample.prompts", "validate.prompts", listed)
        return
    found = [key for key in list(keys.unanswered()) if key.startswith("sample.samples.") and key.endswith(".prompt")]
    prompts = [text for key in found if (text := text_of(keys, key)) is not None]
    if prompts:
        sheet.settings["validate.prompts"] = prompts
        for key in found:
            keys.answer(key, "translated", "validate.prompts")
