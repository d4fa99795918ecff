"""Keys that become no setting: why they are not needed, or why they are not supported and what is nearest.

The keys are those of accelerate 1.15 (`ClusterConfig` and the options of `accelerate launch`) and of earlier versions,
and those of DeepSpeed's configuration page and of `DeepSpeedZeroConfig` in DeepSpeed 0.18.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from foretune.config.from_accelerate.config_keys import ConfigKeys, is_off
from foretune.core.errors import closest


@dataclass(frozen=True)
class KnownKeys:
    """Keys with the same answer. A key that asks for nothing is not needed, whatever the outcome otherwise."""

    outcome: Literal["same", "not needed", "not supported"]
    text: str
    names: str
    """Words; `*` stands for any letters."""


_TPU = "Nearest: the same number of NVIDIA or AMD GPUs"
_FSDP_UNITS = "every repeated block of the model is one FSDP unit, whatever its class"
_FLOAT8 = "torchao scales each tensor from its own values"
_MEGATRON = "it is for Megatron-LM's own models. Nearest: parallel.sharding=full, as in the sections above"

ACCELERATE = (
    KnownKeys("not needed", "Foretune runs where it is started", "compute_environment"),
    KnownKeys("not needed", "torchrun and srun number the machines", "machine_rank"),
    KnownKeys("not needed", "`foretune train` is the program that is started", "main_training_function"),
    KnownKeys(
        "not supported",
        "collectives are not checked one by one. Nearest: the variable TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "debug",
    ),
    KnownKeys(
        "not supported",
        "processes are not bound to NUMA nodes. Nearest: start with torchrun --numa-binding=node",
        "enable_cpu_affinity",
    ),
    KnownKeys("not supported", f"TPUs cannot be used. {_TPU}", "downcast_bf16 tpu_* command_file commands"),
    KnownKeys(
        "not supported",
        "processes are not started by mpirun. Nearest: torchrun on each machine, or srun",
        "mpirun_config mpirun_config.*",
    ),
    KnownKeys("not needed", "torch uses the CPU's fast kernels itself", "ipex_config ipex_config.*"),
    KnownKeys("not supported", "tensor parallelism is not supported. Nearest: parallel.sharding=full", "tp_config*"),
    KnownKeys("not needed", "empty", "fsdp_config deepspeed_config megatron_lm_config parallelism_config"),
    KnownKeys("not needed", "empty", "dynamo_config fp8_config"),
)
FSDP = (
    KnownKeys("not needed", "weights and gradients stay on the device here too", "fsdp_config.fsdp_offload_params"),
    KnownKeys(
        "not needed",
        _FSDP_UNITS,
        "fsdp_config.fsdp_auto_wrap_policy fsdp_config.fsdp_transformer_layer_cls_to_wrap "
        "fsdp_config.fsdp_min_num_params",
    ),
    KnownKeys(
        "not needed",
        "FSDP2 gathers the next block while one runs, in both directions",
        "fsdp_config.fsdp_backward_prefetch fsdp_config.fsdp_forward_prefetch fsdp_config.fsdp_limit_all_gathers",
    ),
    KnownKeys(
        "not needed",
        "checkpoints have whole tensors, which the first process gathers; they load on any number of devices",
        "fsdp_config.fsdp_state_dict_type",
    ),
    KnownKeys("not needed", "FSDP2 always keeps the original parameters", "fsdp_config.fsdp_use_orig_params"),
    KnownKeys(
        "not needed",
        "every process reads the same files, which is checked at the start",
        "fsdp_config.fsdp_sync_module_states",
    ),
    KnownKeys(
        "not supported",
        "every process loads the whole model before it is sharded, so each device needs room for the weights once. "
        "Nearest: for adapters, a smaller base: quantize.denoiser=int8 with parallel.sharding=none",
        "fsdp_config.fsdp_cpu_ram_efficient_loading deepspeed_config.zero3_init_flag",
    ),
    KnownKeys("not needed", "activations stay on the device", "fsdp_config.fsdp_activation_checkpointing_offload"),
    KnownKeys(
        "not supported",
        "all weights of the denoiser are sharded. Nearest: parallel.sharding=none",
        "fsdp_config.fsdp_ignored_modules",
    ),
    KnownKeys(
        "not needed",
        "it belongs to context or sequence parallelism, which is off",
        "parallelism_config.parallelism_config_cp_* parallelism_config.parallelism_config_sp_*",
    ),
)
FP8 = (
    KnownKeys(
        "not supported",
        "float8 is not sharded yet. Nearest: quantize.denoiser=float8-training without sharding",
        "fp8_config.fp8_enable_fsdp_float8_all_gather",
    ),
    KnownKeys("not needed", "inputs are always padded", "fp8_config.fp8_pad_inner_dim"),
    KnownKeys(
        "not needed",
        _FLOAT8,
        "fp8_config.fp8_margin fp8_config.fp8_interval fp8_config.fp8_amax_* fp8_config.fp8_format "
        "fp8_config.fp8_override_linear_precision fp8_config.fp8_opt*_level fp8_config.fp8_use_autocast_during_eval "
        "fp8_config.fp8_backend",
    ),
)
MEGATRON = (
    KnownKeys(
        "not needed",
        "parallel.sharding=full shards optimizer states too",
        "megatron_lm_config.megatron_lm_use_distributed_optimizer megatron_lm_config.megatron_lm_use_custom_fsdp",
    ),
    KnownKeys("not supported", _MEGATRON, "megatron_lm_config.*"),
)
DEEPSPEED = (
    KnownKeys(
        "not needed",
        "checkpoints have whole tensors, and `foretune export` writes them for diffusers",
        "deepspeed_config.zero3_save_16bit_model",
    ),
    KnownKeys(
        "not needed",
        "torchrun or srun starts the processes on each machine",
        "deepspeed_config.deepspeed_multinode_launcher deepspeed_config.deepspeed_hostfile "
        "deepspeed_config.deepspeed_exclusion_filter deepspeed_config.deepspeed_inclusion_filter",
    ),
    KnownKeys(
        "not needed",
        "blocks are gathered as a whole, mixtures of experts included",
        "deepspeed_config.deepspeed_moe_layer_cls_names",
    ),
    KnownKeys(
        "not supported",
        "nothing is moved to NVMe. Nearest: levers.optimizer_offload=true, to host memory, without sharding",
        "deepspeed_config.offload_*_nvme_path",
    ),
)
_TUNING = "it tunes how DeepSpeed sends and stores tensors; FSDP2 sends each block at once"
_GRADIENTS = "gradients are averaged in the dtype of the weights, fp32 by default"
_NUMBERS = "torch.amp.GradScaler finds the loss scale"
_TRACKERS = "trackers are set in the experiment. Nearest: track=[tensorboard] or track=[wandb]"
_NOT_HERE = "it changes the model or the data in a way that is not supported. Nearest: leave it out"

DEEPSPEED_JSON = (
    KnownKeys(
        "not needed",
        _TUNING,
        "zero_optimization.overlap_comm zero_optimization.contiguous_gradients zero_optimization.reduce_* "
        "zero_optimization.allgather_* zero_optimization.use_multi_rank_bucket_allreduce "
        "zero_optimization.sub_group_size zero_optimization.stage3_prefetch_bucket_size "
        "zero_optimization.stage3_*_threshold zero_optimization.stage3_max_* zero_optimization.stage3_use_all_reduce_* "
        "zero_optimization.stage3_allgather_sequential zero_optimization.stage3_partition_stream_chunk_size "
        "zero_optimization.prefetch_bucket_size zero_optimization.*_persistence_threshold zero_optimization.max_* "
        "zero_optimization.module_granularity_threshold zero_optimization.round_robin_gradients "
        "zero_optimization.ignore_unused_parameters zero_optimization.legacy_stage1 "
        "zero_optimization.memory_efficient_linear zero_optimization.override_module_apply "
        "zero_optimization.mics_hierarchical_params_gather zero_optimization.parameter_alignment "
        "zero_optimization.compute_grad_norm zero_optimization.leaf_module* zero_optimization.log_trace_cache_warnings "
        "zero_optimization.enable_sanity_checks",
    ),
    KnownKeys(
        "not needed",
        "checkpoints have whole tensors, in fp32 unless train.weight_dtype is bf16",
        "zero_optimization.stage3_gather_* zero_optimization.gather_16bit_weights_on_model_save "
        "zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint "
        "zero_optimization.pipeline_loading_checkpoint checkpoint.*",
    ),
    KnownKeys(
        "not needed",
        "it tunes DeepSpeed's offload",
        "zero_optimization.offload_optimizer.* zero_optimization.offload_param.* "
        "zero_optimization.cpu_offload_use_pin_memory aio.* zero_force_ds_cpu_optimizer",
    ),
    KnownKeys("not needed", "off", "zero_optimization.cpu_offload"),
    KnownKeys(
        "not supported",
        "weights are not moved to the host. Nearest: levers.block_swap=N, for adapters on one device",
        "zero_optimization.cpu_offload_param",
    ),
    KnownKeys(
        "not supported",
        "weights and gradients are sent as they are. Nearest: leave it out",
        "zero_optimization.zero_quantized_* zero_optimization.zeropp_loco_param*",
    ),
    KnownKeys(
        "not supported",
        "Nearest: parallel.sharding=hybrid with parallel.shard_devices, which shards inside of groups",
        "zero_optimization.zero_hpz_partition_size zero_optimization.mics_shard_size",
    ),
    KnownKeys("not supported", _NOT_HERE, "zero_optimization.zenflow* zero_optimization.save_muon_*"),
    KnownKeys(
        "not needed",
        _NUMBERS,
        "fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis fp16.min_loss_scale "
        "fp16.consecutive_hysteresis fp16.fused_mode",
    ),
    KnownKeys("not needed", "autocast casts inputs", "fp16.auto_cast"),
    KnownKeys(
        "not supported",
        "trained weights are fp32 or bf16. Nearest: train.weight_dtype=bf16 with train.precision=bf16",
        "fp16.fp16_master_weights_and_grads bf16.bf16_optimizer_states bf16.bf16_master_weights_and_grads",
    ),
    KnownKeys("not needed", _GRADIENTS, "bf16.immediate_grad_update bfloat16.immediate_grad_update"),
    KnownKeys(
        "not needed",
        _GRADIENTS,
        "communication_data_type seq_parallel_comm* data_types.* prescale_gradients gradient_predivide_factor "
        "sparse_gradients gradient_allreduce_op managed_gradient_accumulation disable_allgather",
    ),
    KnownKeys(
        "not supported",
        "precision is train.precision. Nearest: train.precision=bf16",
        "amp.* torch_autocast.*",
    ),
    KnownKeys("not needed", "AdamW is torch's", "optimizer.params.torch_adam optimizer.params.adam_w_mode"),
    KnownKeys("not needed", "AdamW corrects its bias", "optimizer.params.bias_correction optimizer.legacy_fusion"),
    KnownKeys("not needed", "the optimizer is chosen in the experiment", "zero_allow_untested_optimizer"),
    KnownKeys(
        "not needed",
        "the warm-up is linear from 0, and decay ends at the last step, at 0",
        "scheduler.params.warmup_min_lr scheduler.params.warmup_type scheduler.params.total_num_steps "
        "scheduler.params.warmup_min_ratio scheduler.params.cos_min_ratio scheduler.params.last_batch_iteration",
    ),
    KnownKeys(
        "not supported",
        "Nearest: levers.gradient_checkpointing=1, and levers.activation_offload=true without sharding",
        "activation_checkpointing.*",
    ),
    KnownKeys(
        "not needed",
        "the run's log has losses, times and memory; `foretune profile` finds the bottleneck",
        "steps_per_print wall_clock_breakdown memory_breakdown dump_state flops_profiler.* comms_logger.* "
        "csv_monitor.*",
    ),
    KnownKeys("not supported", _TRACKERS, "tensorboard.* wandb.* comet.*"),
    KnownKeys(
        "not supported",
        _NOT_HERE,
        "autotuning.* elasticity.* compression_training.* data_efficiency.* curriculum_learning.* sparse_attention.* "
        "progressive_layer_drop.* eigenvalue.* hybrid_engine.* pipeline.* tensor_parallel.* compile.* "
        "vocabulary_size dataloader_drop_last graph_harvesting use_data_before_expert_parallelism* msamp.* nebula.*",
    ),
)


def answer_rest(keys: ConfigKeys, tables: Iterable[KnownKeys], unused: dict[str, str]) -> None:
    """Answers every key that became no setting. `unused` are beginnings of keys that the other program ignores too."""
    known = tuple(tables)
    names = [name for row in known for name in row.names.split()]
    read = sorted(keys.read)
    for key in keys.unanswered():
        reason = next((text for start, text in unused.items() if key.startswith(start)), None)
        if reason is not None:
            keys.answer(key, "not needed", reason)
            continue
        row = next((row for row in known if any(fnmatchcase(key, name) for name in row.names.split())), None)
        if is_off(keys.get(key)) and (key in read if row is None else row.outcome == "not supported"):
            keys.answer(key, "not needed", "off")
        elif row is None:
            keys.answer(key, "unknown", _hint(key, [*read, *names]))
        else:
            keys.answer(key, row.outcome, row.text)


def _hint(key: str, known: Iterable[str]) -> str:
    guess = closest(key, [name for name in known if "*" not in name])
    return f"Did you mean {guess!r}?" if guess else "It is no key that is known here; check it by hand."
