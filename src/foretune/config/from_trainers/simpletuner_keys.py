"""The keys of SimpleTuner's config.json at bc8e6ab7738c, and what each means here."""

from collections.abc import Mapping
from typing import Any

from foretune.config.from_accelerate.known_keys import KnownKeys
from foretune.config.from_trainers.sheet import Rule
from foretune.config.from_trainers.words import OptimizerWord

EDITS = "it trains on pairs of images, which is not supported"
FLAVOURS: Mapping[str, Mapping[str, str | None]] = {
    "flux": {
        "": "flux.1-dev", "dev": "flux.1-dev", "krea": "flux.1-dev", "fluxbooru": "flux.1-dev",
        "schnell": "flux.1-schnell", "libreflux": "flux.1-schnell", "kontext": None,
    },
    "flux2": {"dev": "flux.2-dev"},
    "sd1x": {"": "sd1.5-unet", "1.5": "sd1.5-unet", "1.4": "sd1.5-unet", "dreamshaper": "sd1.5-unet"},
    "sd2x": {"": "sd2-unet", "2.0": "sd2-unet", "2.1": "sd2-unet", "pseudoflex-v2": "sd2-unet"},
    "sdxl": {"": "sdxl-unet", "base-1.0": "sdxl-unet", "base-0.9": "sdxl-unet"},
    "sd3": {"": "sd3.5-medium", "medium": "sd3.5-medium", "large": "sd3.5-large"},
    "wan": {
        "": "wan2.1-t2v-1.3b", "t2v-480p-1.3b-2.1": "wan2.1-t2v-1.3b", "t2v-480p-14b-2.1": "wan2.1-t2v-14b",
        "i2v-14b-2.1": "wan2.1-i2v-14b", "i2v-14b-2.1-720p": "wan2.1-i2v-14b",
        "i2v-14b-2.2-high": "wan2.2-a14b-i2v-expert", "i2v-14b-2.2-low": "wan2.2-a14b-i2v-expert",
        "animegen-t2v-high": "wan2.2-a14b-t2v-expert", "animegen-t2v-low": "wan2.2-a14b-t2v-expert",
        "ti2v-5b-2.2": "wan2.2-ti2v-5b",
    },
    "ltxvideo": {"": "ltx-video-0.9", "0.9.5": "ltx-video-0.9", "0.9.0": "ltx-video-0.9"},
    "hunyuanvideo": {"": "hunyuanvideo-1.5", "t2v-480p": "hunyuanvideo-1.5", "t2v-720p": "hunyuanvideo-1.5"},
    "pixart_sigma": {
        "": "pixart-sigma-900m", "900M-1024-v0.6": "pixart-sigma-900m", "600M-512": "pixart-sigma-xl2-1024",
        "900M-1024-v0.7-stage1": "pixart-sigma-900m", "900M-1024-v0.7-stage2": "pixart-sigma-900m",
        "600M-1024": "pixart-sigma-xl2-1024", "600M-2048": "pixart-sigma-xl2-1024",
    },
    "qwen_image": {"": "qwen-image", "v1.0": "qwen-image", "v2.0": "qwen-image", "edit-v1": None, "edit-v2": None},
    "z_image": {
        "": "z-image", "base": "z-image", "turbo": "z-image", "turbo-ostris-v2": "z-image",
        "ostris-de-turbo": "z-image",
    },
    "lumina2": {"": "lumina-image-2.0", "2.0": "lumina-image-2.0", "neta-lumina": "lumina-image-2.0"},
    "chroma": {"": "chroma", "base": "chroma", "hd": "chroma", "flash": "chroma"},
    "auraflow": {"": "auraflow", "v0.3": "auraflow", "v0.2": "auraflow", "v0.1": "auraflow", "pony": "auraflow"},
    "sana": {"sana1.0-1.6b-1024": "sana-1.6b", "sana1.5-1.6b-1024": "sana-1.6b"},
    "kolors": {"": "kolors-unet", "1.0": "kolors-unet"},
    "hidream": {"": "hidream-i1", "full": "hidream-i1", "dev": "hidream-i1", "fast": "hidream-i1"},
    "krea2": {"": "krea-2", "raw": "krea-2", "turbo": "krea-2"},
}  # fmt: skip
"""The denoiser of each of its families and flavours; "" is its default."""
OTHER_NAMES = {"pixart": "pixart_sigma", "sd1": "sd1x", "sd2": "sd2x"}

OPTIMIZERS: Mapping[str, OptimizerWord] = {
    "adamw_bf16": OptimizerWord("adamw", "bf16", "kahan", "bf16 weights and states with Kahan summation"),
    "torch-adamw": OptimizerWord("adamw", "bf16"),
    "torch-adam": OptimizerWord("adamw", "bf16", remark="with decoupled weight decay"),
    "optimi-adamw": OptimizerWord("adamw", "bf16", "kahan"),
    "optimi-lion": OptimizerWord("lion", "bf16", remark="its two bf16 states take the bytes of one in fp32"),
    "bnb-adamw": OptimizerWord("adamw", "bf16"),
    "bnb-adamw8bit": OptimizerWord("adamw8bit", "bf16"),
    "bnb-adamw8bit-paged": OptimizerWord("paged-adamw8bit", "bf16"),
    "bnb-lion8bit": OptimizerWord("lion8bit", "bf16"),
    "bnb-lion": OptimizerWord("lion", "bf16"),
    "adamw-schedulefree": OptimizerWord("schedule-free", "bf16"),
    "torch-adafactor": OptimizerWord("adafactor", "bf16"),
    "prodigy": OptimizerWord("prodigy", "bf16"),
}
QUANTIZERS: Mapping[str, str] = {
    "no_change": "none",
    "int8-torchao": "int8",
    "int8-quanto": "int8",
    "fp8-torchao": "float8-dynamic",
    "fp8wo-torchao": "float8",
    "nf4-bnb": "nf4",
}


def _or_none(value: Any) -> Any:
    return value or None


def _prompts(text: str) -> list[str] | None:
    return None if text.lower() == "none" else [text]


RULES = (
    Rule(key="learning_rate", setting="optimizer.lr", reading="number", default=4e-7),
    Rule(key="train_batch_size", setting="train.batch_size", reading="whole", default=4),
    Rule(key="gradient_accumulation_steps", setting="train.gradient_accumulation", reading="whole"),
    Rule(key="max_grad_norm", setting="train.max_grad_norm", reading="number", default=2.0, turn=_or_none),
    Rule(key="lr_warmup_steps", setting="optimizer.warmup_steps", reading="whole", at_least=0),
    Rule(key="adam_epsilon", setting="optimizer.eps", reading="number", turn=_or_none),
    Rule(key="adam_weight_decay", setting="optimizer.weight_decay", reading="number"),
    Rule(key="seed", setting="train.seed", reading="whole", at_least=0),
    Rule(key="checkpointing_steps", setting="save.every", reading="whole", turn=_or_none, at_least=0),
    Rule(key="checkpoint_step_interval", setting="save.every", reading="whole", default=500, turn=_or_none, at_least=0),
    Rule(key="checkpoints_total_limit", setting="save.keep", reading="whole", default=5),
    Rule(key="validation_step_interval", setting="validate.every", reading="whole", turn=_or_none, at_least=0),
    Rule(key="validation_steps", setting="validate.every", reading="whole", turn=_or_none, at_least=0),
    Rule(key="validation_prompt", setting="validate.prompts", reading="text", turn=_prompts),
    Rule(key="validation_num_inference_steps", setting="validate.num_inference_steps", reading="whole"),
    Rule(key="validation_guidance", setting="validate.guidance_scale", reading="number"),
    Rule(key="validation_seed", setting="validate.seed", reading="whole", at_least=0),
    Rule(key="caption_dropout_probability", setting="data.caption_dropout", reading="number", default=0.1),
    Rule(key="vae_enable_tiling", setting="levers.vae_tiling", reading="yes"),
    Rule(key="musubi_blocks_to_swap", setting="levers.block_swap", reading="whole", at_least=0),
    Rule(key="num_processes", setting="parallel.devices", reading="whole"),
)
"""Keys that become a setting of the same meaning."""
OTHERS = (
    ("model_family model_flavour pretrained_model_name_or_path", "model"),
    ("model_type lora_type lycoris_config lora_rank lora_alpha lora_dropout use_dora", "method"),
    ("data_backend_config instance_data_dir resolution resolution_type", "data"),
    ("max_train_steps num_train_epochs", "train.steps, train.epochs"),
    ("mixed_precision", "train.precision"),
    ("optimizer", "optimizer.kind, optimizer.compensation, train.weight_dtype"),
    ("adam_beta1 adam_beta2 optimizer_beta1 optimizer_beta2", "optimizer.betas"),
    ("lr_scheduler", "optimizer.schedule"),
    ("use_ema ema_decay ema_device", "train.ema, levers.ema_offload"),
    ("flow_schedule_shift", "objective.shift"),
    (
        "gradient_checkpointing gradient_checkpointing_interval gradient_checkpointing_segment_stride",
        "levers.gradient_checkpointing, levers.checkpoint_segment, levers.checkpoint_stride",
    ),
    ("gradient_checkpointing_offload_attention", "levers.activation_offload"),
    ("base_model_precision text_encoder_1_precision", "quantize.denoiser, quantize.text_encoders"),
    ("dynamo_backend", "levers.compile"),
    ("report_to", "track"),
)
"""Keys that are read together, and the settings that they become."""
_NOT_HERE = "it is not supported"
KNOWN = (
    KnownKeys("same", "latents and captions are encoded before training", "vae_cache_disable text_cache_disable"),
    KnownKeys(
        "not needed", "it splits work and changes no result", "vae_batch_size text_encoder_batch_size max_workers"
    ),
    KnownKeys(
        "not needed",
        "the attention kernel changes little memory",
        "attention_mechanism fuse_qkv_projections sageattention_usage disable_tf32",
    ),
    KnownKeys(
        "not needed",
        "publishing, logging and files are the program's own",
        "hub_model_id push_* model_card_* output_dir tracker_* logging_dir webhook_* publishing_config post_* "
        "configs_dir modelspec_comment lora_format delete_* disk_low_* custom_tracker checkpoint*_tempdir "
        "checkpointing_* checkpoints_rolling* merge_environment_config resume_from_checkpoint user_prompt_library "
        "cache_dir* cache_clear* preserve_data_backend_cache skip_file_discovery vae_cache_* text_cache_ondemand "
        "compress_disk_cache write_batch_size read_batch_size image_processing_batch_size print_* debug_* "
        "metadata_update_interval aws_* dataloader_prefetch* torch_num_threads enable_multiprocessing "
        "trust_remote_code "
        "i_know_what_i_am_doing ignore_missing_files override_dataset_config save_text_encoder shortname_here "
        "another_shortname text_embed_full_cache accelerator_cache_clear_interval",
    ),
    KnownKeys(
        "not needed",
        "samples for validation are drawn with validate.*",
        "validation_* num_validation_images num_eval_images eval_* evaluation_type pretrained_evaluation_* "
        "disable_benchmark enable_watermark ideogram_validation",
    ),
    KnownKeys(
        "not needed",
        "buckets are made by data.max_buckets; the largest one decides the memory",
        "aspect_bucket_* disable_bucket_pruning allow_dataset_oversubscription minimum_image_size maximum_image_size "
        "target_downsample_size max_upscale_threshold data_backend_sampling strict_epoch_limit caption_strategy "
        "enable_nsfw_check nsfw_* parquet_* disable_multiline_split conditioning_multidataset_sampling framerate",
    ),
    KnownKeys(
        "not needed",
        "loading is planned step by step",
        "offload_during_startup quantize_via fully_unload_text_encoder delete_model_after_load keep_vae_loaded "
        "offload_during_save vae_dtype vae_enable_slicing vae_enable_patch_conv vae_enable_temporal_roll "
        "base_model_default_dtype gradient_checkpointing_backend set_grads_to_none",
    ),
    KnownKeys(
        "not needed",
        "for another family, optimizer or launcher",
        "ideogram_* minimax_* cosmos3_* hidream_* ltx2_* audio_* sdnq_* prodigy_steps flux_guidance_* t5_padding "
        "context_parallel_comm_strategy ramtorch_* lr_end lr_power lr_num_cycles machine_rank same_network "
        "main_process_* "
        "accelerate_config find_unused_parameters dynamo_* ema_validation ema_update_interval ema_foreach_disable "
        "ema_warmup_steps ema_cpu_only seed_for_each_device local_rank",
    ),
    KnownKeys(
        "not supported",
        "weights are streamed from the host. Nearest: levers.block_swap",
        "ramtorch enable_group_offload group_offload_* musubi_block_swap_device",
    ),
    KnownKeys("not supported", "tokens are routed around blocks, so it takes less than planned", "tread_config"),
    KnownKeys(
        "not supported", "sequences are shared by devices. Nearest: parallel.sharding=full", "context_parallel_size"
    ),
    KnownKeys(
        "not supported", "Nearest: parallel.sharding=full, see `foretune import-accelerate`", "fsdp_* deepspeed_*"
    ),
    KnownKeys("not supported", "values of the optimizer in one text. Set the keys of `optimizer`", "optimizer_config"),
    KnownKeys(
        "not supported",
        "gradients leave one by one. Nearest: levers.fused_backward=true",
        "optimizer_release_gradients fuse_optimizer optimizer_cpu_offload_method optimizer_offload_gradients",
    ),
    KnownKeys(
        "not supported",
        _NOT_HERE,
        "loss_type snr_gamma huber_* noise_offset* input_perturbation* flow_schedule_auto_shift flow_use_* flow_*beta* "
        "flow_sigmoid_scale grad_clip_method *_enabled crepa_* urepa_* layersync_* internal_guidance_* "
        "tokenizer_max_length "
        "layer_freeze_strategy freeze_encoder_* diffusion_blocks_config init_lora* assistant_lora_* lora_init_type "
        "peft_lora_* flux_lora_target pretrained_* revision variant timestep_bias_* offset_noise lr_scale* "
        "prepend_instance_prompt only_instance_prompt instance_prompt quantize_activations quantization_config "
        "rescale_betas_zero_snr prediction_type use_soft_min_snr masked_loss_probability scheduled_sampling_* "
        "slider_lora_target init_lokr_norm gradient_precision text_encoder_*_precision num_machines "
        "training_scheduler_timestep_spacing inference_scheduler_timestep_spacing data_aesthetic_score",
    ),
)
REFUSED = {
    "controlnet": "ControlNets cannot be trained here",
    "control": "control models cannot be trained here",
    "distillation_method": "distillation from a teacher is not supported",
    "train_text_encoder": "text encoders cannot be trained here",
    "refiner_training": "training a refiner on part of the timesteps is not supported",
}
