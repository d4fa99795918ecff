"""The keys of OneTrainer's JSON files at 23df3832, and what each means here."""

from collections.abc import Mapping
from typing import Any

from foretune.config.from_accelerate.known_keys import KnownKeys
from foretune.config.from_trainers.sheet import Rule
from foretune.config.from_trainers.words import OptimizerWord

MODEL_TYPES: Mapping[str, str | None] = {
    "STABLE_DIFFUSION_15": "sd1.5-unet",
    "STABLE_DIFFUSION_20": "sd2-unet",
    "STABLE_DIFFUSION_20_BASE": "sd2-unet",
    "STABLE_DIFFUSION_21": "sd2-unet",
    "STABLE_DIFFUSION_21_BASE": "sd2-unet",
    "STABLE_DIFFUSION_3": "sd3-medium",
    "STABLE_DIFFUSION_35": "sd3.5-medium",
    "STABLE_DIFFUSION_XL_10_BASE": "sdxl-unet",
    "PIXART_SIGMA": "pixart-sigma-xl2-1024",
    "FLUX_DEV_1": "flux.1-dev",
    "FLUX_2": "flux.2-dev",
    "SANA": "sana-1.6b",
    "HUNYUAN_VIDEO": "hunyuanvideo",
    "HI_DREAM_FULL": "hidream-i1",
    "CHROMA_1": "chroma",
    "QWEN": "qwen-image",
    "KREA_2": "krea-2",
    "Z_IMAGE": "z-image",
}
REFUSED_METHODS: Mapping[str, str] = {
    "EMBEDDING": "textual inversion trains words, not weights; it is not supported",
    "FINE_TUNE_VAE": "autoencoders cannot be trained here",
}
ADAPTERS: Mapping[str, str] = {"LORA": "lora", "LOHA": "loha", "OFT_2": "oft", "OFT": "oft", "LOKR": "lokr"}
OPTIMIZERS: Mapping[str, OptimizerWord] = {
    "ADAM_8BIT": OptimizerWord("adamw8bit", remark="with decoupled weight decay"),
    "ADAMW_8BIT": OptimizerWord("adamw8bit"),
    "LION_8BIT": OptimizerWord("lion8bit"),
    "SCHEDULE_FREE_ADAMW": OptimizerWord("schedule-free"),
}
QUANTIZERS: Mapping[str, str] = {
    "FLOAT_8": "float8",
    "INT_8": "int8-bnb",
    "NFLOAT_4": "nf4",
    "FLOAT_32": "none",
    "FLOAT_16": "none",
    "BFLOAT_16": "none",
    "TFLOAT_32": "none",
    "NONE": "none",
}
ENCODERS: Mapping[str, str] = QUANTIZERS
DENSITIES = {"UNIFORM": "uniform", "LOGIT_NORMAL": "logit_normal"}


def _or_none(value: Any) -> Any:
    return value or None


RULES = (
    Rule(key="batch_size", setting="train.batch_size", reading="whole"),
    Rule(key="gradient_accumulation_steps", setting="train.gradient_accumulation", reading="whole"),
    Rule(key="epochs", setting="train.epochs", reading="whole", default=100),
    Rule(key="learning_rate", setting="optimizer.lr", reading="number", default=3e-6),
    Rule(key="clip_grad_norm", setting="train.max_grad_norm", reading="number", turn=_or_none),
    Rule(key="optimizer.weight_decay", setting="optimizer.weight_decay", reading="number"),
    Rule(key="seed", setting="train.seed", reading="whole", at_least=0),
    Rule(key="latent_caching", setting="levers.cache_latents", reading="yes"),
    Rule(key="dataloader_threads", setting="data.num_workers", reading="whole", at_least=0),
    Rule(key="rolling_backup_count", setting="save.keep", reading="whole"),
    Rule(key="timestep_shift", setting="objective.shift", reading="number", turn=_or_none),
)
OTHERS = (
    ("model_type base_model_name", "model"),
    ("training_method peft_type lora_rank lora_alpha lora_decompose dropout_probability", "method"),
    ("lokr_decompose_factor lokr_full_matrix oft_block_size", "method"),
    ("concepts.*.path concept_file_name", "data.path, data.folders"),
    ("resolution frames", "data.resolution, data.num_frames"),
    ("text_encoder_sequence_length text_encoder_2_sequence_length", "data.max_text_tokens"),
    ("train_dtype transformer.weight_dtype unet.weight_dtype", "train.precision, train.weight_dtype"),
    ("transformer.weight_dtype unet.weight_dtype text_encoder*.weight_dtype", "quantize"),
    ("optimizer.optimizer optimizer.stochastic_rounding", "optimizer.kind, optimizer.compensation"),
    ("optimizer.beta1 optimizer.beta2", "optimizer.betas"),
    ("optimizer.fused_back_pass", "levers.fused_backward"),
    ("learning_rate_scheduler learning_rate_warmup_steps", "optimizer.schedule, optimizer.warmup_steps"),
    ("ema ema_decay", "train.ema, levers.ema_offload"),
    ("timestep_distribution noising_weight noising_bias", "objective.timestep_density"),
    ("gradient_checkpointing transformer.gradient_checkpointing", "levers.gradient_checkpointing"),
    ("transformer.activation_offloading enable_activation_offloading", "levers.activation_offload"),
    ("transformer.offload_fraction layer_offload_fraction", "levers.block_swap"),
    ("compile", "levers.compile"),
    ("multi_gpu device_indexes", "parallel.devices"),
)
KNOWN = (
    KnownKeys(
        "not needed",
        "names, places and logging of the program itself",
        "__version secrets.* cloud.* workspace_dir cache_dir huggingface_cache_dir offline_mode debug_* tensorboard* "
        "output_* backup_* save_* rolling_backup continue_last_backup prevent_overwrites include_train_config "
        "lora_model_name *.uuid *.model_name *.include optimizer_defaults.* optimizer.__version secrets cloud "
        "optimizer_defaults only_cache clear_cache_before_training",
    ),
    KnownKeys(
        "not needed",
        "samples for validation are drawn with validate.*",
        "sample_* samples samples.* samples_to_tensorboard non_ema_sampling validation validate_after*",
    ),
    KnownKeys(
        "not needed",
        "the attention kernel changes little memory",
        "attention_mechanism enable_autocast_cache fallback_train_dtype train_device temp_device async_offloading "
        "vae.weight_dtype vae.* effnet_encoder.* decoder.* decoder_text_encoder.* decoder_vqgan.* prior.* "
        "unconditional_transformer.* force_circular_padding",
    ),
    KnownKeys(
        "not needed",
        "for another optimizer, method or loss",
        "optimizer.* learning_rate_cycles learning_rate_min_factor scheduler_params* custom_learning_rate_scheduler "
        "embedding.* additional_embeddings* embedding_* preserve_embedding_norm lokr_* oft_* lora_weight_dtype "
        "bundle_additional_embeddings lora_decompose_* huber_delta vb_loss_strength ema_update_step_interval "
        "quantization.layer_filter* quantization.svd_* quantization.cache_dir gradient_reduce_precision "
        "*_gradient_reduce* "
        "loss_weight_strength aspect_ratio_bucketing mse_strength",
    ),
    KnownKeys(
        "not needed", "the text encoders are freed after their captions are cached", "text_encoder*.offload_fraction"
    ),
    KnownKeys("same", "text encoders are not trained", "text_encoder*.train text_encoder*.train_embedding"),
    KnownKeys("not needed", "parts of the text encoders", "text_encoder* transformer.train unet.train"),
    KnownKeys(
        "not needed",
        "for the sampling of its own model",
        "transformer.attention_mask transformer.guidance_scale unet.*",
    ),
    KnownKeys("not supported", "layers by name. Set method.targets to the ends of their names", "layer_filter*"),
    KnownKeys(
        "not supported",
        "it is not supported",
        "loss_weight_fn loss_scaler learning_rate_scaler offset_noise_weight generalized_offset_noise "
        "perturbation_noise_weight rescale_noise_* force_* min_noising_strength max_noising_strength noising_weight "
        "noising_bias dynamic_timestep_shifting mae_strength log_cosh_strength huber_strength masked_* unmasked_* "
        "normalize_masked_area_loss custom_conditioning_image transformer.stop_* transformer.learning_rate "
        "transformer.* concepts.*",
    ),
)
