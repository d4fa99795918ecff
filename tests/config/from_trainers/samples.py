"""Configurations of five trainers, written for these tests, each with what it should become."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Sample:
    """One configuration."""

    program: str
    file: str
    content: Mapping[str, Any] | str
    model: str
    """The denoiser of the catalogue that it is planned as."""
    expected: Mapping[str, Any]
    """Settings by dotted key."""

    @property
    def name(self) -> str:
        return f"{self.program}-{self.file.partition('.')[0]}"

    def write(self, folder: Path, changes: Mapping[str, Any] | None = None, *, without: str | None = None) -> Path:
        return write(folder / self.file, self.content, changes or {}, without=without)


def write(
    path: Path, content: Mapping[str, Any] | str, changes: Mapping[str, Any], *, without: str | None = None
) -> Path:
    if isinstance(content, str):
        path.write_text(with_flags(content, changes, without=without), encoding="utf-8")
        return path
    changed = json.loads(json.dumps(content))
    for key, value in changes.items():
        place(changed, key)[last(key)] = value
    if without is not None:
        place(changed, without).pop(last(without), None)
    if path.suffix == ".json":
        text = json.dumps(changed)
    elif path.suffix == ".toml":
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in changed.items())
    else:
        text = yaml.safe_dump(changed)
    path.write_text(text, encoding="utf-8")
    return path


def with_flags(text: str, changes: Mapping[str, Any], *, without: str | None = None) -> str:
    """The command with flags appended; the last of two counts. One to leave out is removed where it stands."""
    words = [
        word for word in text.split(" ") if without is None or not word.startswith((f"--{without}=", f"--{without}\n"))
    ]
    if without is not None:
        words = [word for word in words if word.strip() != f"--{without}"]
    added = []
    for key, value in changes.items():
        values = value if isinstance(value, list) else [value]
        added.append(f" --{key}" if value is True else f" --{key} {' '.join(map(str, values))}")
    return " ".join(words).rstrip("\n") + "".join(added) + "\n"


def place(mapping: Any, key: str) -> Any:
    """The section of a dotted key; ai-toolkit's keys are those of its first process."""
    where = mapping
    if isinstance(mapping.get("config"), dict) and key not in ("job", "config.name"):
        where = mapping["config"]["process"][0]
    for part in key.split(".")[:-1]:
        where = where[int(part)] if isinstance(where, list) else where.setdefault(part, {})
    return where


def last(key: str) -> str:
    return key.rpartition(".")[2]


def job(process: Mapping[str, Any]) -> dict[str, Any]:
    return {"job": "extension", "config": {"name": "trial", "process": [{"type": "sd_trainer", **process}]}}


_ST = {"model_type": "lora", "max_train_steps": 40, "learning_rate": 1e-4, "resolution": 512}
_SIMPLETUNER = (
    Sample(
        "simpletuner",
        "flux.json",
        {**_ST, "model_family": "flux", "model_flavour": "dev", "lora_rank": 8, "base_model_precision": "int8-torchao",
         "lora_alpha": 4, "use_ema": True, "ema_decay": 0.99, "ema_device": "cpu", "report_to": "wandb"},
        "flux.1-dev",
        {"model": "flux.1-dev", "method.rank": 8, "quantize.denoiser": "int8", "optimizer.compensation": "kahan",
         "train.weight_dtype": "bf16", "method.dropout": 0.1, "train.ema": {"decay": 0.99}, "track": ["wandb"]},
    ),
    Sample(
        "simpletuner",
        "sdxl.json",
        {**_ST, "--model_family": "sdxl", "model_type": "full", "optimizer": "bnb-adamw8bit", "num_train_epochs": 0,
         "adam_beta1": 0.8, "max_grad_norm": 0.5, "use_ema": False, "checkpointing_steps": 250},
        "sdxl-unet",
        {"method.kind": "full", "save.every": 250, "optimizer.kind": "adamw8bit", "optimizer.betas": [0.8, 0.999],
         "train.max_grad_norm": 0.5},
    ),
    Sample(
        "simpletuner",
        "sd3.json",
        {**_ST, "model_family": "sd3", "model_flavour": "large", "optimizer": "optimi-lion",
         "gradient_checkpointing_interval": 2, "gradient_checkpointing_segment_stride": 4,
         "gradient_checkpointing_offload_attention": True},
        "sd3.5-large",
        {"optimizer.kind": "lion", "levers.checkpoint_segment": 2, "levers.checkpoint_stride": 4,
         "levers.activation_offload_parts": "attention"},
    ),
    Sample(
        "simpletuner",
        "wan.json",
        {**_ST, "model_family": "wan", "pretrained_model_name_or_path": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
         "resolution": 480, "musubi_blocks_to_swap": 4, "dynamo_backend": "inductor"},
        "wan2.1-t2v-1.3b",
        {"data.kind": "clips", "levers.gradient_checkpointing": 1.0, "levers.block_swap": 4,
         "levers.compile": "regional"},
    ),
    Sample(
        "simpletuner",
        "hunyuan.json",
        {**_ST, "model_family": "hunyuanvideo", "flow_schedule_shift": 7.0, "gradient_checkpointing": False,
         "lr_scheduler": "polynomial"},
        "hunyuanvideo-1.5",
        {"levers.gradient_checkpointing": 0.0, "objective.shift": 7.0, "optimizer.schedule": "linear"},
    ),
    Sample(
        "simpletuner",
        "lokr.json",
        {**_ST, "model_family": "auraflow", "lora_type": "lycoris", "lycoris_config": "config/lycoris.json"},
        "auraflow",
        {"method.kind": "lokr", "method.full_matrix": True},
    ),
)  # fmt: skip

_AI_TRAIN = {"steps": 30, "lr": 1e-4, "dtype": "bf16", "optimizer": "adamw8bit", "batch_size": 2}
_AI_DATA = [{"folder_path": "/pictures", "resolution": [512, 768], "caption_dropout_rate": 0.05,
             "cache_latents_to_disk": True}]  # fmt: skip
_AI_TOOLKIT = (
    Sample(
        "ai-toolkit",
        "flux.yaml",
        job({"network": {"type": "lora", "linear": 8, "linear_alpha": 4}, "datasets": _AI_DATA, "train": _AI_TRAIN,
             "model": {"name_or_path": "black-forest-labs/FLUX.1-dev", "is_flux": True, "quantize": True},
             "sample": {"prompts": ["a red barn"], "sample_every": 10, "seed": 3}, "save": {"save_every": 10}}),
        "flux.1-dev",
        {"method.rank": 8, "method.alpha": 4.0, "quantize.denoiser": "float8", "data.resolution": 768,
         "levers.cache_text": False, "levers.cache_latents": True, "optimizer.kind": "adamw8bit"},
    ),
    Sample(
        "ai-toolkit",
        "sdxl.yaml",
        job({"datasets": [{"folder_path": "a", "num_repeats": 3}, {"folder_path": "b", "flip_x": True}],
             "train": {**_AI_TRAIN, "optimizer": "adafactor"}, "trigger_word": "zwx",
             "model": {"name_or_path": "stabilityai/stable-diffusion-xl-base-1.0", "arch": "sdxl"}}),
        "sdxl-unet",
        {"method.kind": "full", "train.weight_dtype": "bf16", "optimizer.kind": "adafactor", "data.flip": 0.5,
         "data.folders": [{"path": "a", "repeats": 3, "trigger": "zwx"}, {"path": "b", "repeats": 1,
          "trigger": "zwx"}]},
    ),
    Sample(
        "ai-toolkit",
        "wan.yaml",
        job({"network": {"type": "lokr", "lokr_factor": 8, "lokr_full_rank": True}, "train": _AI_TRAIN,
             "datasets": [{"folder_path": "clips", "num_frames": 33, "resolution": 256}],
             "model": {"name_or_path": "Wan-AI/Wan2.1-T2V-14B-Diffusers", "arch": "wan21:14b", "quantize": True,
                       "qtype": "uint4|some/adapter.safetensors", "low_vram": True}}),
        "wan2.1-t2v-14b",
        {"method.kind": "lokr", "method.factor": 8, "quantize.denoiser": "nf4", "data.num_frames": 33,
         "data.resolution": 256},
    ),
    Sample(
        "ai-toolkit",
        "sd3.json",
        job({"network": {"type": "lora", "rank": 4}, "datasets": _AI_DATA,
             "train": {**_AI_TRAIN, "cache_text_embeddings": True, "timestep_type": "linear",
                       "ema_config": {"use_ema": True, "ema_decay": 0.95}},
             "model": {"name_or_path": "stabilityai/stable-diffusion-3.5-medium", "is_v3": True}}),
        "sd3.5-medium",
        {"levers.cache_text": True, "objective.timestep_density": "uniform", "train.ema": {"decay": 0.95}},
    ),
    Sample(
        "ai-toolkit",
        "zimage.yaml",
        job({"network": {"type": "lora", "linear": 16, "alpha": 16}, "datasets": _AI_DATA, "train": _AI_TRAIN,
             "model": {"name_or_path": "Tongyi-MAI/Z-Image-Turbo", "arch": "zimage:turbo", "layer_offloading": True,
                       "layer_offloading_transformer_percent": 0.5, "compile": True}}),
        "z-image",
        {"accept": ["distilled-base"], "levers.compile": "regional"},
    ),
)  # fmt: skip

_KOHYA_TOML = {
    "pretrained_model_name_or_path": "models/sd_xl_base_1.0.safetensors", "network_module": "networks.lora",
    "network_dim": 8, "network_alpha": 4, "train_data_dir": "pictures", "resolution": "1024,1024",
    "train_batch_size": 2, "max_train_steps": 50, "learning_rate": 1e-4, "mixed_precision": "bf16",
    "optimizer_type": "AdamW8bit", "cache_latents": True, "cache_text_encoder_outputs": True,
    "network_train_unet_only": True, "gradient_checkpointing": True, "lr_scheduler": "cosine",
}  # fmt: skip
_LAUNCH = "accelerate launch --num_processes 2 --mixed_precision bf16"
_SD_SCRIPTS = (
    Sample(
        "sd-scripts",
        "sdxl.toml",
        _KOHYA_TOML,
        "sdxl-unet",
        {"model": "sdxl-unet", "method.rank": 8, "method.alpha": 4.0, "data.resolution": 1024,
         "levers.cache_text": True, "train.weight_dtype": None},
    ),
    Sample(
        "sd-scripts",
        "flux.sh",
        f"{_LAUNCH} flux_train_network.py --pretrained_model_name_or_path=flux1-dev.safetensors --t5xxl=t5.safetensors "
        "--ae=ae.safetensors --network_module=networks.lora_flux --network_dim=16 --max_train_steps=20 "
        "--timestep_sampling=uniform --discrete_flow_shift=3.1 --blocks_to_swap=8 --fp8_base --cache_latents "
        "--cache_text_encoder_outputs --learning_rate=1e-4 --gradient_checkpointing --guidance_scale=1\n",
        "flux.1-dev",
        {"levers.block_swap": 8, "quantize.denoiser": "float8", "objective.shift": 3.1, "parallel.devices": 2,
         "objective.timestep_density": "uniform", "method.alpha": 1.0},
    ),
    Sample(
        "sd-scripts",
        "sd3.sh",
        "accelerate launch sd3_train.py \\\n --pretrained_model_name_or_path=sd3_medium.safetensors "
        "--mixed_precision=bf16 --max_train_epochs=4 --full_bf16 --fused_backward_pass --optimizer_type=adafactor "
        "--learning_rate=1e-6 --max_grad_norm=0\n",
        "sd3-medium",
        {"method.kind": "full", "train.epochs": 4, "train.weight_dtype": "bf16", "levers.fused_backward": True,
         "train.max_grad_norm": None},
    ),
    Sample(
        "sd-scripts",
        "sd15.txt",
        "accelerate launch train_network.py "
        "--pretrained_model_name_or_path=stable-diffusion-v1-5/stable-diffusion-v1-5 "
        "--network_module=lycoris.kohya --network_args algo=lokr factor=8 --network_dim=4 --resolution=768,512 "
        "--train_batch_size=4 --max_train_steps=9 --use_8bit_adam --lr_warmup_steps=0.4 --caption_dropout_rate=0.2\n",
        "sd1.5-unet",
        {"method.kind": "lokr", "data.resolution": "768x512", "optimizer.kind": "adamw8bit",
         "optimizer.warmup_steps": 4},
    ),
    Sample(
        "sd-scripts",
        "lumina.sh",
        "accelerate launch --mixed_precision fp16 lumina_train_network.py --gemma2=g --ae=a "
        "--pretrained_model_name_or_path=lumina.safetensors --network_module=networks.lora_lumina --network_dim=4 "
        "--max_train_steps=8 --learning_rate=1e-4 --flip_aug --log_with=wandb\n",
        "lumina-image-2.0",
        {"train.precision": "fp16", "data.flip": 0.5, "track": ["wandb"]},
    ),
)  # fmt: skip

_OT = {"training_method": "LORA", "train_dtype": "BFLOAT_16", "resolution": "512", "learning_rate": 3e-4, "epochs": 2}
_ONETRAINER = (
    Sample(
        "onetrainer",
        "flux.json",
        {**_OT, "model_type": "FLUX_DEV_1", "base_model_name": "black-forest-labs/FLUX.1-dev", "lora_rank": 8,
         "transformer": {"weight_dtype": "NFLOAT_4", "train": True}, "text_encoder_2": {"weight_dtype": "NFLOAT_4"},
         "timestep_distribution": "LOGIT_NORMAL", "ema": "CPU", "ema_decay": 0.9, "batch_size": 2},
        "flux.1-dev",
        {"quantize.denoiser": "nf4", "quantize.text_encoders": "nf4", "method.alpha": 1.0, "levers.ema_offload": True,
         "objective.timestep_density": "logit_normal"},
    ),
    Sample(
        "onetrainer",
        "sdxl.json",
        {**_OT, "model_type": "STABLE_DIFFUSION_XL_10_BASE", "training_method": "FINE_TUNE",
         "base_model_name": "stabilityai/stable-diffusion-xl-base-1.0", "unet": {"weight_dtype": "BFLOAT_16"},
         "optimizer": {"optimizer": "ADAMW", "stochastic_rounding": True, "beta2": 0.99},
          "learning_rate_warmup_steps": 7},
        "sdxl-unet",
        {"method.kind": "full", "train.weight_dtype": "bf16", "optimizer.compensation": "stochastic",
         "optimizer.warmup_steps": 7, "optimizer.betas": [0.9, 0.99]},
    ),
    Sample(
        "onetrainer",
        "hunyuan.json",
        {**_OT, "model_type": "HUNYUAN_VIDEO", "base_model_name": "hunyuanvideo-community/HunyuanVideo",
         "frames": "33", "transformer": {"weight_dtype": "FLOAT_8", "offload_fraction": 0.5}, "peft_type": "LOHA"},
        "hunyuanvideo",
        {"method.kind": "loha", "data.num_frames": 33, "quantize.denoiser": "float8", "levers.block_swap": 30},
    ),
    Sample(
        "onetrainer",
        "sd3.json",
        {**_OT, "model_type": "STABLE_DIFFUSION_35", "base_model_name": "C:\\models\\sd35.safetensors",
         "concepts": [{"path": "C:\\pictures"}], "gradient_checkpointing": "OFF", "peft_type": "OFT_2",
         "oft_block_size": 16, "resolution": "512,768x1024", "compile": True},
        "sd3.5-medium",
        {"model": "sd3.5-medium", "method.block_size": 16, "levers.gradient_checkpointing": 0.0,
         "data.path": "C:\\pictures", "data.resolution": "1024x768"},
    ),
    Sample(
        "onetrainer",
        "chroma.json",
        {**_OT, "model_type": "CHROMA_1", "base_model_name": "lodestones/Chroma1-HD", "latent_caching": False,
         "optimizer": {"optimizer": "CAME"}, "lora_decompose": True, "multi_gpu": True, "device_indexes": "0,1"},
        "chroma",
        {"model": "lodestones/Chroma1-HD", "method.kind": "dora", "levers.cache_latents": False, "parallel.devices": 2,
         "optimizer.kind": "adamw"},
    ),
)  # fmt: skip

_DIFFUSERS = (
    Sample(
        "diffusers",
        "flux.sh",
        'export MODEL="black-forest-labs/FLUX.1-dev"\nexport DATA=dogs\naccelerate launch '
        "train_dreambooth_lora_flux.py "
        "--pretrained_model_name_or_path=$MODEL --instance_data_dir=$DATA --instance_prompt='a dog' "
        "--mixed_precision=bf16 --rank=8 --resolution=512 --train_batch_size=1 --max_train_steps=50 "
        "--learning_rate=1e-4 --gradient_checkpointing --cache_latents --guidance_scale=1 --weighting_scheme=mode "
        "--lora_dropout=0.1 --use_8bit_adam --report_to=wandb --seed=0\n",
        "flux.1-dev",
        {"method.rank": 8, "data.path": "dogs", "train.weight_dtype": "bf16", "levers.cache_text": True,
         "objective.timestep_density": "mode", "optimizer.kind": "adamw8bit"},
    ),
    Sample(
        "diffusers",
        "sdxl.sh",
        "accelerate launch train_text_to_image_sdxl.py --use_ema --max_train_steps=10 --mixed_precision=fp16 "
        "--pretrained_model_name_or_path=stabilityai/stable-diffusion-xl-base-1.0 --train_data_dir=x --random_flip "
        "--proportion_empty_prompts=0.2 --train_batch_size=1 --center_crop\n",
        "sdxl-unet",
        {"method.kind": "full", "train.ema": {"decay": 0.9999}, "levers.cache_text": True, "data.caption_dropout": 0.2,
         "data.resolution": 1024, "data.crop": "center"},
    ),
    Sample(
        "diffusers",
        "sd15.txt",
        "accelerate launch --num_processes=2 train_text_to_image_lora.py --num_train_epochs=3 --resolution=256 "
        "--pretrained_model_name_or_path=CompVis/stable-diffusion-v1-4 --dataset_name=me/pictures "
        "--lr_scheduler=cosine --lr_warmup_steps=0 --gradient_accumulation_steps=4 --validation_prompt='a dog'\n",
        "sd1.5-unet",
        {"model": "CompVis/stable-diffusion-v1-4", "train.batch_size": 16, "train.epochs": 3,
         "levers.cache_text": False,
         "train.precision": "fp32", "optimizer.schedule": "cosine"},
    ),
    Sample(
        "diffusers",
        "sd3.sh",
        "accelerate launch train_dreambooth_sd3.py --instance_data_dir=x --instance_prompt=y --optimizer=prodigy "
        "--pretrained_model_name_or_path=stabilityai/stable-diffusion-3-medium-diffusers --max_train_steps=6 "
        "--learning_rate=1.0 --mixed_precision=no --allow_tf32 --train_batch_size=1\n",
        "sd3-medium",
        {"method.kind": "full", "optimizer.kind": "prodigy", "train.precision": "tf32", "train.weight_dtype": "fp32"},
    ),
    Sample(
        "diffusers",
        "cogvideox.sh",
        "accelerate launch train_cogvideox_lora.py --pretrained_model_name_or_path=THUDM/CogVideoX-2b "
        "--instance_data_root=clips --max_num_frames=49 --height=480 --width=720 --fps=8 --max_train_steps=5 "
        "--mixed_precision=bf16 --enable_tiling --lora_alpha=64 --train_batch_size=1\n",
        "cogvideox-2b",
        {"method.rank": 128, "method.alpha": 64.0, "data.kind": "clips", "data.num_frames": 49,
         "data.resolution": "720x480", "levers.vae_tiling": True},
    ),
    Sample(
        "diffusers",
        "wandering.sh",
        "torchrun --nproc_per_node 1 train_unconditional.py --dataset_name=x --resolution=32 --num_epochs=2 "
        "--train_batch_size=8 --use_ema --mixed_precision=no\n",
        "ddpm-cifar10",
        {"method.kind": "full", "train.epochs": 2, "data.resolution": 32},
    ),
)  # fmt: skip
SAMPLES = (*_SIMPLETUNER, *_AI_TOOLKIT, *_SD_SCRIPTS, *_ONETRAINER, *_DIFFUSERS)
