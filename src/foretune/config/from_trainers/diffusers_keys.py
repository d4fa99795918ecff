"""The flags of diffusers' example scripts at 58eb52c0, and what each means here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from foretune.config.from_accelerate.known_keys import KnownKeys
from foretune.config.from_trainers.sheet import Rule


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a script does without flags."""

    method: Literal["full", "lora"]
    model: str | None
    """The denoiser of the catalogue that it is mostly used with; None where it takes any of several."""
    batch: int = 4
    lr: float = 1e-4
    weight_decay: float = 1e-4
    epochs: int = 1
    resolution: int = 512
    rank: int = 4
    has_captions: bool = False
    """Whether each image has its own caption; otherwise one prompt is encoded once and the text encoders are freed."""
    caches: bool = False
    """Whether latents and captions are always encoded before the first step."""
    keeps_text: bool = False
    """Whether the text encoders stay on the device even with one prompt."""


SCRIPTS: Mapping[str, Script] = {
    "train_text_to_image": Script(
        method="full", model="sd1.5-unet", batch=16, weight_decay=1e-2, epochs=100, has_captions=True
    ),
    "train_text_to_image_lora": Script(
        method="lora", model="sd1.5-unet", batch=16, weight_decay=1e-2, epochs=100, has_captions=True
    ),
    "train_text_to_image_sdxl": Script(
        method="full", model="sdxl-unet", batch=16, weight_decay=1e-2, epochs=100, resolution=1024, caches=True
    ),
    "train_text_to_image_lora_sdxl": Script(
        method="lora", model="sdxl-unet", batch=16, weight_decay=1e-2, epochs=100, resolution=1024, has_captions=True
    ),
    "train_dreambooth": Script(method="full", model="sd1.5-unet", lr=5e-6, weight_decay=1e-2, keeps_text=True),
    "train_dreambooth_lora": Script(method="lora", model="sd1.5-unet", lr=5e-4, weight_decay=1e-2, keeps_text=True),
    "train_dreambooth_lora_sdxl": Script(method="lora", model="sdxl-unet", resolution=1024),
    "train_dreambooth_sd3": Script(method="full", model="sd3-medium"),
    "train_dreambooth_lora_sd3": Script(method="lora", model="sd3-medium"),
    "train_dreambooth_flux": Script(method="full", model="flux.1-dev"),
    "train_dreambooth_lora_flux": Script(method="lora", model="flux.1-dev"),
    "train_dreambooth_lora_flux_advanced": Script(method="lora", model="flux.1-dev"),
    "train_dreambooth_lora_sdxl_advanced": Script(method="lora", model="sdxl-unet", resolution=1024),
    "train_dreambooth_lora_qwen_image": Script(method="lora", model="qwen-image"),
    "train_dreambooth_lora_z_image": Script(method="lora", model="z-image"),
    "train_dreambooth_lora_sana": Script(method="lora", model="sana-1.6b"),
    "train_dreambooth_lora_lumina2": Script(method="lora", model="lumina-image-2.0"),
    "train_dreambooth_lora_hidream": Script(method="lora", model="hidream-i1"),
    "train_dreambooth_lora_flux2": Script(method="lora", model="flux.2-dev"),
    "train_dreambooth_lora_krea2": Script(method="lora", model="krea-2"),
    "train_cogvideox_lora": Script(method="lora", model="cogvideox-2b", rank=128, has_captions=True),
    "train_unconditional": Script(
        method="full", model="ddpm-cifar10", batch=16, weight_decay=1e-6, epochs=100, resolution=64
    ),
}
REFUSED: Mapping[str, str] = {
    "controlnet": "ControlNets cannot be trained here",
    "control_": "control models cannot be trained here",
    "t2i_adapter": "T2I adapters cannot be trained here",
    "textual_inversion": "textual inversion trains words, not weights; it is not supported",
    "instruct_pix2pix": "it trains on pairs of images, which is not supported",
    "kontext": "it trains on pairs of images, which is not supported",
    "img2img": "it trains on pairs of images, which is not supported",
    "inpaint": "inpainting models cannot be trained here",
    "realfill": "inpainting models cannot be trained here",
    "custom_diffusion": "Custom Diffusion trains words and attention together, which is not supported",
    "distill": "distillation from a teacher is not supported",
    "dpo": "training from preferences is not supported",
    "orpo": "training from preferences is not supported",
    "flax": "it runs in JAX, not torch",
    "xla": "it runs on TPUs",
    "prior": "it trains a prior of Kandinsky or Wuerstchen, which is not in the catalogue",
    "decoder": "it trains a decoder of Kandinsky, which is not in the catalogue",
    "autoencoder": "autoencoders cannot be trained here",
    "vqgan": "autoencoders cannot be trained here",
    "multi_subject": "several prompts for each step are not supported",
    "amused": "its models are not in the catalogue",
}
"""Parts of the names of scripts that train something else."""


def _half(flag: bool) -> Any:
    return 0.5 if flag else None


def _or_none(value: Any) -> Any:
    return value or None


RULES = (
    Rule(key="gradient_accumulation_steps", setting="train.gradient_accumulation", reading="whole"),
    Rule(key="max_grad_norm", setting="train.max_grad_norm", reading="number", turn=_or_none),
    Rule(key="lr_warmup_steps", setting="optimizer.warmup_steps", reading="whole", default=500, at_least=0),
    Rule(key="seed", setting="train.seed", reading="whole", at_least=0),
    Rule(key="adam_epsilon", setting="optimizer.eps", reading="number", turn=_or_none),
    Rule(key="checkpointing_steps", setting="save.every", reading="whole", default=500),
    Rule(key="checkpoints_total_limit", setting="save.keep", reading="whole"),
    Rule(key="validation_steps", setting="validate.every", reading="whole"),
    Rule(key="validation_prompt", setting="validate.prompts", reading="text", turn=lambda text: [text]),
    Rule(key="random_flip", setting="data.flip", reading="yes", turn=_half),
    Rule(key="caption_dropout", setting="data.caption_dropout", reading="number"),
    Rule(key="proportion_empty_prompts", setting="data.caption_dropout", reading="number"),
    Rule(key="dataloader_num_workers", setting="data.num_workers", reading="whole", at_least=0),
    Rule(key="lora_dropout", setting="method.dropout", reading="number"),
    Rule(key="guidance_scale", setting="objective.guidance_scale", reading="number"),
    Rule(key="logit_mean", setting="objective.logit_mean", reading="number"),
    Rule(key="logit_std", setting="objective.logit_std", reading="number", turn=_or_none),
    Rule(key="mode_scale", setting="objective.mode_scale", reading="number"),
    Rule(key="enable_tiling", setting="levers.vae_tiling", reading="yes"),
    Rule(key="enable_vae_tiling", setting="levers.vae_tiling", reading="yes"),
    Rule(key="num_processes", setting="parallel.devices", reading="whole"),
)
OTHERS = (
    ("pretrained_model_name_or_path", "model"),
    ("rank lora_alpha lora_rank use_dora", "method"),
    ("instance_data_dir train_data_dir dataset_name instance_data_root repeats", "data.path, data.repeats"),
    ("resolution height width max_num_frames fps", "data.resolution, data.num_frames, data.fps"),
    ("max_sequence_length", "data.max_text_tokens"),
    ("center_crop", "data.crop"),
    ("max_train_steps num_train_epochs num_epochs", "train.steps, train.epochs"),
    ("train_batch_size", "train.batch_size"),
    ("mixed_precision allow_tf32", "train.precision, train.weight_dtype"),
    ("optimizer use_8bit_adam learning_rate", "optimizer.kind, optimizer.lr"),
    ("adam_beta1 adam_beta2 adam_weight_decay", "optimizer.betas, optimizer.weight_decay"),
    ("lr_scheduler", "optimizer.schedule"),
    ("use_ema offload_ema", "train.ema, levers.ema_offload"),
    ("gradient_checkpointing", "levers.gradient_checkpointing"),
    ("cache_latents", "levers.cache_latents"),
    ("caption_column pre_compute_text_embeddings", "levers.cache_text"),
    ("weighting_scheme", "objective.timestep_density, objective.weighting"),
    ("do_fp8_training", "quantize.denoiser"),
    ("report_to", "track"),
    ("validation_prompts", "validate.prompts"),
)
KNOWN = (
    KnownKeys(
        "not needed",
        "names, places and logging of the program itself",
        "output_dir logging_dir push_to_hub hub_* tracker_* cache_dir resume_from_checkpoint local_rank debug_loss "
        "output_kohya_format upcast_before_saving skip_save_text_encoder logger overwrite_output_dir "
        "instance_prompt id_token image_column video_column text_column max_train_samples config_file "
        "skip_final_inference",
    ),
    KnownKeys(
        "not needed",
        "samples for validation are drawn with validate.*",
        "num_validation_images num_validation_videos validation_prompt_separator sample_batch_size eval_batch_size "
        "save_images_epochs validation_images validation_scheduler final_validation_prompt validation_image "
        "ddpm_num_inference_steps use_dynamic_cfg",
    ),
    KnownKeys(
        "not needed",
        "the attention kernel changes little memory",
        "enable_xformers_memory_efficient_attention enable_npu_flash_attention image_interpolation_mode "
        "noise_scheduler",
    ),
    KnownKeys(
        "not needed", "for another optimizer or schedule", "prodigy_* lr_num_cycles lr_power adam_weight_decay_text_*"
    ),
    KnownKeys(
        "not needed", "without prior preservation", "class_* prior_loss_weight num_class_images prior_generation_*"
    ),
    KnownKeys(
        "not needed",
        "accelerate's own; see `foretune import-accelerate`",
        "accelerate.* multi_gpu gpu_ids set_grads_to_none enable_slicing foreach_ema placement",
    ),
    KnownKeys("not supported", "only steps are counted. Set save.every or validate.every", "*_epochs"),
    KnownKeys(
        "not supported", "text encoders are not trained", "train_text_encoder text_encoder_lr train_text_encoder_*"
    ),
    KnownKeys(
        "not supported", "parts move between host and device; the plan keeps them there", "offload remote_text_encoder"
    ),
    KnownKeys(
        "not supported",
        "it is not supported",
        "scale_lr snr_gamma noise_offset input_perturbation dream_* prediction_type revision variant non_ema_revision "
        "pretrained_* dataset_config_name timestep_bias_* do_edm_style_training lora_layers lora_blocks "
        "aspect_ratio_buckets use_aspect_ratio_buckets bnb_quantization_config_path tokenizer_max_length "
        "text_encoder_use_attention_mask system_prompt complex_human_instruction class_labels_conditioning "
        "fsdp_text_encoder skip_frames_* video_reshape_mode ema_* ddpm_* model_config_name_or_path "
        "preserve_input_precision tokenizer_name text_encoder_out_layers use_fix_crop_and_size token_abstraction "
        "num_new_tokens_per_abstraction initializer_concept unet_learning_rate text_encoder_learning_rate "
        "train_transformer_frac init_lora_weights loss_type huber_* use_blora enable_t5_ti",
    ),
)
