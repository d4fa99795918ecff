"""The options of kohya's sd-scripts at 48d368fa, and what each means here."""

from collections.abc import Mapping
from typing import Any

from foretune.config.from_accelerate.known_keys import KnownKeys
from foretune.config.from_trainers.sheet import Rule

NO_TEXTUAL_INVERSION = "textual inversion trains words, not weights; it is not supported"
_NO_CONTROL = "ControlNets cannot be trained here"
SCRIPTS: Mapping[str, tuple[str, str | None]] = {
    "train_network": ("network", "sd1.5-unet"),
    "train_db": ("full", "sd1.5-unet"),
    "fine_tune": ("full", "sd1.5-unet"),
    "sdxl_train_network": ("network", "sdxl-unet"),
    "sdxl_train": ("full", "sdxl-unet"),
    "sd3_train_network": ("network", "sd3-medium"),
    "sd3_train": ("full", "sd3-medium"),
    "flux_train_network": ("network", "flux.1-dev"),
    "flux_train": ("full", "flux.1-dev"),
    "lumina_train_network": ("network", "lumina-image-2.0"),
    "lumina_train": ("full", "lumina-image-2.0"),
    "anima_train_network": ("network", None),
    "anima_train": ("full", None),
    "hunyuan_image_train_network": ("network", None),
}
"""What each script trains, and of which denoiser of the catalogue."""
REFUSED_SCRIPTS: Mapping[str, str] = {
    "train_textual_inversion": NO_TEXTUAL_INVERSION,
    "train_textual_inversion_XTI": NO_TEXTUAL_INVERSION,
    "sdxl_train_textual_inversion": NO_TEXTUAL_INVERSION,
    "train_controlnet": _NO_CONTROL,
    "train_control_net": _NO_CONTROL,
    "sdxl_train_control_net": _NO_CONTROL,
    "sdxl_train_control_net_lllite": _NO_CONTROL,
    "flux_train_control_net": _NO_CONTROL,
    "train_leco": "it trains on prompts without images, which is not supported",
    "sdxl_train_leco": "it trains on prompts without images, which is not supported",
}
MODULES: Mapping[str, tuple[str, str | None]] = {
    "networks.lora": ("lora", None),
    "networks.lora_flux": ("lora", "flux.1-dev"),
    "networks.lora_sd3": ("lora", "sd3-medium"),
    "networks.lora_lumina": ("lora", "lumina-image-2.0"),
    "networks.loha": ("loha", None),
    "networks.lokr": ("lokr", None),
    "lycoris.kohya": ("lora", None),
}
"""Kind of adapter of network_module, and the denoiser that it is for."""
OTHER_MODULES = ("networks.lora_anima", "networks.lora_hunyuan_image")


def or_none(value: Any) -> Any:
    return value or None


def _half(flag: bool) -> Any:
    return 0.5 if flag else None


RULES = (
    Rule(key="train_batch_size", setting="train.batch_size", reading="whole"),
    Rule(key="gradient_accumulation_steps", setting="train.gradient_accumulation", reading="whole"),
    Rule(key="max_grad_norm", setting="train.max_grad_norm", reading="number", turn=or_none),
    Rule(key="seed", setting="train.seed", reading="whole", at_least=0),
    Rule(key="save_every_n_steps", setting="save.every", reading="whole"),
    Rule(key="sample_every_n_steps", setting="validate.every", reading="whole"),
    Rule(key="caption_dropout_rate", setting="data.caption_dropout", reading="number"),
    Rule(key="flip_aug", setting="data.flip", reading="yes", turn=_half),
    Rule(key="random_crop", setting="data.crop", reading="yes", turn=lambda flag: "random" if flag else None),
    Rule(key="max_data_loader_n_workers", setting="data.num_workers", reading="whole", at_least=0),
    Rule(key="guidance_scale", setting="objective.guidance_scale", reading="number"),
    Rule(key="cpu_offload_checkpointing", setting="levers.activation_offload", reading="yes"),
    Rule(key="logit_mean", setting="objective.logit_mean", reading="number"),
    Rule(key="logit_std", setting="objective.logit_std", reading="number", turn=or_none),
)
OTHERS = (
    ("pretrained_model_name_or_path v2 model_type network_module", "model"),
    ("network_module network_dim network_alpha network_dropout network_args", "method"),
    ("train_data_dir dataset_config", "data.path, data.folders"),
    ("resolution enable_bucket", "data.resolution"),
    ("max_token_length t5xxl_max_token_length", "data.max_text_tokens"),
    ("max_train_steps max_train_epochs", "train.steps, train.epochs"),
    ("mixed_precision full_bf16", "train.precision, train.weight_dtype"),
    ("learning_rate unet_lr", "optimizer.lr"),
    ("optimizer_type use_8bit_adam use_lion_optimizer optimizer_args", "optimizer.kind, optimizer.weight_decay"),
    ("lr_scheduler lr_warmup_steps", "optimizer.schedule, optimizer.warmup_steps"),
    ("timestep_sampling weighting_scheme discrete_flow_shift", "objective"),
    ("gradient_checkpointing", "levers.gradient_checkpointing"),
    ("cache_latents cache_latents_to_disk", "levers.cache_latents"),
    ("cache_text_encoder_outputs cache_text_encoder_outputs_to_disk", "levers.cache_text"),
    ("blocks_to_swap", "levers.block_swap"),
    ("fp8_base fp8_base_unet", "quantize.denoiser"),
    ("fused_backward_pass", "levers.fused_backward"),
    ("torch_compile", "levers.compile"),
    ("log_with", "track"),
    ("accelerate.num_processes", "parallel.devices"),
)
KNOWN = (
    KnownKeys(
        "not needed",
        "names, places and logging of the program itself",
        "output_dir output_name save_model_as save_precision save_state* save_last_n_* save_n_epoch_ratio logging_dir "
        "log_prefix log_tracker_* wandb_* huggingface_* async_upload resume* no_metadata metadata_* training_comment "
        "console_log_* log_config config_file output_config use_safetensors no_half_vae save_*  mem_eff_save",
    ),
    KnownKeys(
        "not needed",
        "a model is one folder with all of its parts",
        "vae clip_l clip_g t5xxl ae gemma2 tokenizer_cache_dir disable_mmap_load_safetensors t5xxl_dtype t5xxl_device "
        "t5_tokenizer_path text_encoder_batch_size v_parameterization v2_parameterization",
    ),
    KnownKeys(
        "not needed",
        "the attention kernel changes little memory",
        "sdpa xformers mem_eff_attn attn_mode split_attn diffusers_xformers use_flash_attn use_sage_attn "
        "torch_compile_*",
    ),
    KnownKeys("not needed", "samples for validation are drawn with validate.*", "sample_*"),
    KnownKeys(
        "not needed",
        "it splits work and changes no result",
        "persistent_data_loader_workers vae_batch_size lowram highvram skip_cache_check skip_latents_validity_check "
        "cache_info debug_dataset ddp_* initial_* skip_until_initial_step vae_chunk_size vae_disable_cache "
        "dynamo_backend num_cpu_threads_per_process accelerate.*",
    ),
    KnownKeys(
        "not needed",
        "captions are `name.txt` beside `name.png`, and buckets are made by data.max_buckets",
        "caption_extension caption_extention enable_bucket min_bucket_reso max_bucket_reso bucket_reso_steps "
        "bucket_no_upscale resize_interpolation skip_image_resolution dataset_repeats in_json",
    ),
    KnownKeys("not needed", "there are no regularisation images", "prior_loss_weight"),
    KnownKeys("not supported", "only steps are counted. Set save.every or validate.every", "*_every_n_epochs"),
    KnownKeys(
        "not supported", "text encoders are not trained", "text_encoder_lr learning_rate_te* train_t5xxl stop_text_*"
    ),
    KnownKeys("not supported", "sequences of steps are not resumed from weights", "network_weights dim_from_weights"),
    KnownKeys(
        "not supported",
        "Nearest: parallel.sharding=full, see `foretune import-accelerate`",
        "deepspeed zero* offload_*",
    ),
    KnownKeys(
        "not supported",
        "it is not supported",
        "shuffle_caption keep_tokens* caption_prefix caption_suffix caption_separator secondary_separator color_aug "
        "face_crop_aug_range caption_tag_dropout_rate caption_dropout_every_n_epochs token_warmup_* enable_wildcard "
        "alpha_mask masked_loss conditioning_data_dir clip_skip weighted_captions noise_offset* adaptive_noise_scale "
        "multires_noise_* ip_noise_gamma* min_snr_gamma scale_v_pred_loss_like_noise_pred v_pred_like_loss "
        "debiased_estimation_loss zero_terminal_snr min_timestep max_timestep loss_type huber_* scale_weight_norms "
        "base_weights* lr_scheduler_* lr_decay_steps block_lr model_prediction_type apply_t5_attn_mask "
        "apply_lg_attn_mask t5_dropout_rate clip_*_dropout_rate mode_scale sigmoid_scale training_shift "
        "pos_emb_random_crop_rate enable_scaled_pos_embed use_t5xxl_cache_only system_prompt split_mode "
        "double_blocks_to_swap single_blocks_to_swap fused_optimizer_groups blockwise_fused_optimizers full_fp16 "
        "fp16_master_weights_and_gradients fp8_scaled fp8_vl validation_* validate_* dataset_class "
        "unsloth_offload_checkpointing text_encoder_cpu train_inpainting gemma2_max_token_length learning_rate_* "
        "*_attn_lr mlp_lr mod_lr no_token_padding vae_*",
    ),
)
