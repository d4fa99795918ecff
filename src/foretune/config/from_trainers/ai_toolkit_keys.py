"""The keys of ai-toolkit's YAML files at 27a03a91, and what each means here."""

from collections.abc import Mapping
from typing import Any

from foretune.config.from_accelerate.known_keys import KnownKeys
from foretune.config.from_trainers.sheet import Rule
from foretune.config.from_trainers.words import OptimizerWord

ARCHITECTURES: Mapping[str, str | None] = {
    "flux": "flux.1-dev", "sd1": "sd1.5-unet", "sd2": "sd2-unet", "sdxl": "sdxl-unet", "sd3": "sd3.5-large",
    "pixart_sigma": "pixart-sigma-xl2-1024", "auraflow": "auraflow", "lumina2": "lumina-image-2.0",
    "chroma": "chroma", "hidream": "hidream-i1", "wan21:1b": "wan2.1-t2v-1.3b", "wan21:14b": "wan2.1-t2v-14b",
    "wan21": "wan2.1-t2v-14b", "wan21_i2v": "wan2.1-i2v-14b", "wan22_14b": "wan2.2-a14b-t2v-expert",
    "wan22_14b_i2v": "wan2.2-a14b-i2v-expert", "wan22_5b": "wan2.2-ti2v-5b", "qwen_image": "qwen-image",
    "zimage": "z-image", "flux2": "flux.2-dev", "krea2": "krea-2",
}  # fmt: skip
"""The denoiser that `model.arch` means."""
SWITCHES: Mapping[str, str] = {
    "is_flux": "flux.1-dev",
    "is_xl": "sdxl-unet",
    "is_v2": "sd2-unet",
    "is_v3": "sd3.5-large",
    "is_lumina2": "lumina-image-2.0",
    "is_pixart_sigma": "pixart-sigma-xl2-1024",
    "is_auraflow": "auraflow",
}
"""The older way to name an architecture: `model.is_flux`."""
OTHER_SIZES = ("flex.1", "flex.2", "vega", "ssd-1b")
"""Parts of the names of models that have fewer blocks than the architecture they are loaded with."""
PROCESSES = ("sd_trainer", "ui_trainer", "diffusion_trainer")
OPTIMIZERS: Mapping[str, OptimizerWord] = {"adam8": OptimizerWord("adamw8bit"), "adamw8": OptimizerWord("adamw8bit")}
QUANTIZERS: Mapping[str, str] = {
    "qfloat8": "float8",
    "float8": "float8",
    "qint8": "int8",
    "int8": "int8",
    "nf4": "nf4",
}


def _or_none(value: Any) -> Any:
    return value or None


RULES = (
    Rule(key="train.steps", setting="train.steps", reading="whole", default=1000),
    Rule(key="train.batch_size", setting="train.batch_size", reading="whole"),
    Rule(key="train.gradient_accumulation_steps", setting="train.gradient_accumulation", reading="whole"),
    Rule(key="train.gradient_accumulation", setting="train.gradient_accumulation", reading="whole"),
    Rule(key="train.lr", setting="optimizer.lr", reading="number", default=1e-6),
    Rule(key="train.max_grad_norm", setting="train.max_grad_norm", reading="number", turn=_or_none),
    Rule(key="train.optimizer_params.weight_decay", setting="optimizer.weight_decay", reading="number"),
    Rule(key="train.optimizer_params.eps", setting="optimizer.eps", reading="number", turn=_or_none),
    Rule(key="train.seed", setting="train.seed", reading="whole", at_least=0),
    Rule(key="save.save_every", setting="save.every", reading="whole", default=1000),
    Rule(key="save.max_step_saves_to_keep", setting="save.keep", reading="whole", default=5),
    Rule(key="sample.sample_every", setting="validate.every", reading="whole"),
    Rule(key="sample.sample_steps", setting="validate.num_inference_steps", reading="whole"),
    Rule(key="sample.guidance_scale", setting="validate.guidance_scale", reading="number"),
    Rule(key="sample.seed", setting="validate.seed", reading="whole", at_least=0),
)
OTHERS = (
    ("model.name_or_path model.arch model.is_flux model.is_xl", "model"),
    ("network.type network.linear network.rank network.linear_alpha network.alpha network.dropout", "method"),
    ("network.lokr_factor network.lokr_full_rank", "method.factor, method.full_matrix"),
    ("network.pretrained_lora_path", "method.start_from, after an export"),
    ("model.assistant_lora_path", "method.training_adapter, after an export"),
    ("datasets.*.folder_path datasets.*.num_repeats", "data.path, data.folders, data.repeats"),
    ("datasets.*.resolution datasets.*.num_frames", "data.resolution, data.num_frames"),
    ("datasets.*.caption_dropout_rate datasets.*.flip_x", "data.caption_dropout, data.flip"),
    ("datasets.*.cache_latents datasets.*.cache_latents_to_disk", "levers.cache_latents"),
    ("train.cache_text_embeddings train.unload_text_encoder", "levers.cache_text"),
    ("trigger_word", "data.trigger"),
    ("train.dtype", "train.precision, train.weight_dtype"),
    ("train.optimizer", "optimizer.kind"),
    ("train.lr_scheduler", "optimizer.schedule"),
    ("train.gradient_checkpointing", "levers.gradient_checkpointing"),
    ("train.ema_config.use_ema train.ema_config.ema_decay", "train.ema"),
    ("train.timestep_type", "objective.timestep_density"),
    ("model.quantize model.qtype", "quantize.denoiser"),
    ("model.quantize_te model.qtype_te", "quantize.text_encoders"),
    ("model.layer_offloading model.layer_offloading_transformer_percent", "levers.block_swap"),
    ("model.compile", "levers.compile"),
    ("sample.prompts sample.samples.*.prompt", "validate.prompts"),
)
KNOWN = (
    KnownKeys(
        "not needed",
        "names, places and logging of the program itself",
        "job type config.name meta.* training_folder device performance_log_every logging.* sqlite_db_path save.dtype "
        "save.save_format save.push_to_hub save.hf_* model.extras_name_or_path model.model_kwargs.llama_model_path "
        "model.cache_size_limit train.disable_sampling train.skip_first_sample train.force_first_sample",
    ),
    KnownKeys(
        "not needed",
        "samples for validation are drawn with validate.*",
        "sample.sampler sample.width sample.height sample.neg sample.walk_seed sample.num_frames sample.fps "
        "sample.samples.* sample.network_multiplier sample.guidance_rescale sample.format sample.sample_start_step",
    ),
    KnownKeys(
        "not needed",
        "captions are `name.txt` beside `name.png`, and buckets are made by data.max_buckets",
        "datasets.*.caption_ext datasets.*.buckets datasets.*.bucket_tolerance datasets.*.num_workers "
        "datasets.*.prefetch_factor datasets.*.type datasets.*.shrink_video_to_frames datasets.*.fast_image_size "
        "datasets.*.scale datasets.*.replay_transforms datasets.*.cache_latents_num_workers datasets.*.debug",
    ),
    KnownKeys(
        "not needed",
        "the noise schedule is the checkpoint's",
        "train.noise_scheduler train.train_unet train.content_or_style train.num_train_timesteps model.dtype "
        "model.vae_dtype model.te_dtype model.attn_masking train.xformers train.sdp train.attention_backend "
        "network.transformer_only network.old_lokr_format network.split_multistage_loras train.linear_timesteps",
    ),
    KnownKeys("not supported", "parts move between host and device; the plan keeps them there", "model.low_vram"),
    KnownKeys("not supported", "convolutions get no adapter", "network.conv network.conv_alpha"),
    KnownKeys("not supported", "text encoders are not trained", "train.train_text_encoder train.text_encoder_lr"),
    KnownKeys(
        "not supported",
        "it is not supported",
        "train.adapter_assist_name_or_path train.adapter_assist_type train.adapter_lr "
        "train.adaptive_scaling_factor train.audio_loss_multiplier train.batch_noise_correction_scale "
        "train.blank_prompt_preservation_multiplier train.blended_blur_noise train.bypass_guidance_embedding "
        "train.cfg_rescale train.cfg_scale train.correct_pred_norm train.correct_pred_norm_multiplier "
        "train.diff_output_preservation_class train.diff_output_preservation_multiplier "
        "train.differential_guidance_scale train.diffusion_feature_extractor_path "
        "train.diffusion_feature_extractor_weight train.do_batch_noise_correction train.do_blank_stabilization "
        "train.do_cfg train.do_differential_guidance train.do_fft_loss train.do_fft_velocity_equiv_weight "
        "train.do_guidance_loss train.do_guidance_loss_cfg_zero train.do_paramiter_swapping "
        "train.do_prior_divergence train.do_random_cfg train.do_signal_amplification "
        "train.do_signal_correction_noise train.dynamic_noise_offset train.embedding_lr "
        "train.force_consistent_noise train.free_u train.guidance_loss_schedule train.guidance_loss_target "
        "train.img_multiplier train.inverted_mask_prior train.inverted_mask_prior_multiplier "
        "train.latent_feature_extractor_path train.latent_feature_loss_weight train.latent_multiplier "
        "train.learnable_snr_gos train.linear_timesteps2 train.loss_target train.loss_type "
        "train.lr_scheduler_params train.match_adapter_assist train.match_adapter_chance train.match_noise_norm "
        "train.max_cfg_scale train.max_denoising_steps train.max_loss train.max_loss_debug "
        "train.max_negative_prompts train.merge_network_on_save train.merge_network_on_save_strength "
        "train.min_denoising_steps train.min_snr_gamma train.negative_prompt train.next_sample_timesteps "
        "train.noise_multiplier train.noise_offset train.noisy_latent_multiplier "
        "train.optimal_noise_pairing_samples train.paramiter_swapping_factor train.pred_scaler "
        "train.prompt_dropout_prob train.prompt_saturation_chance train.random_noise_multiplier "
        "train.random_noise_shift train.refiner_lr train.reg_weight train.short_and_long_captions "
        "train.short_and_long_captions_encoder_split train.show_turbo_outputs "
        "train.signal_amplification_strength train.signal_correction_noise_scale train.single_item_batching "
        "train.snr_gamma train.standardize_images train.standardize_latents train.start_step "
        "train.switch_boundary_every train.t0_loss_target train.t0_velocity_equiv_weight "
        "train.target_noise_multiplier train.target_norm_std train.target_norm_std_value train.train_refiner "
        "train.train_turbo train.unconditional_prompt train.unet_lr train.validation_config train.weight_jitter "
        "train.optimizer_params.* train.lr_scheduler_params.* train.ema_config.* train.validation_config.* "
        "network.network_kwargs.* network.all_layers network.layer_offloading network.lorm.* model.vae_path "
        "model.refiner_* model.lora_path model.te_name_or_path model.unet_path model.model_kwargs.* "
        "model.quantize_kwargs.* "
        "model.ignore_if_contains model.only_if_contains model.use_flux_cfg model.is_v_pred model.is_ssd model.is_vega "
        "model.split_model_* model.inference_lora_path model.text_encoder_bits model.model_paths.* model.block_compile "
        "model.compile_* model.layer_offloading_text_encoder_percent model.accuracy_recovery_adapter model.auto_memory "
        "datasets.*.default_caption datasets.*.trigger_word datasets.*.shuffle_tokens datasets.*.token_dropout_rate "
        "datasets.*.keep_tokens datasets.*.augment* datasets.*.mask_* datasets.*.alpha_mask datasets.*.invert_mask "
        "datasets.*.random_* datasets.*.square_crop datasets.*.flip_y datasets.*.poi datasets.*.loss_multiplier "
        "datasets.*.fps datasets.*.do_audio datasets.*.do_i2v datasets.*.network_weight datasets.*.dataset_path "
        "datasets.*.standardize_images datasets.*.use_short_captions datasets.*.clip_image_* datasets.*.replacements "
        "datasets.*.cache_tensors_to_disk datasets.*.cache_clip_vision_to_disk datasets.*.auto_frame_count "
        "datasets.*.unconditional_path",
    ),
)
