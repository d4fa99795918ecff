"""Configs of Hugging Face accelerate as the installed version writes them."""

import json
from pathlib import Path
from typing import Any

import yaml
from accelerate.commands.config.config_args import ClusterConfig

import foretune as ft
from foretune.config.from_accelerate.config_keys import KeyAnswer
from foretune.config.reading import Asked, understand

EXPERIMENT = {
    "model": "foretune-shapes",
    "method": {"kind": "lora"},
    "data": {"kind": "shapes"},
    "train": {"steps": 10},
}
SHARDED = {"parallel.devices": 8, "parallel.sharding": "full"}
OFFLOADED: dict[str, Any] = {"offload_optimizer_device": "cpu", "offload_param_device": "none"}
FSDP1 = {
    "fsdp_version": 1,
    "fsdp_reshard_after_forward": "FULL_SHARD",
    "fsdp_offload_params": False,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_transformer_layer_cls_to_wrap": "FluxTransformerBlock",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_forward_prefetch": False,
    "fsdp_use_orig_params": True,
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_sync_module_states": True,
    "fsdp_activation_checkpointing": False,
}
"""The answers of the questionnaire for version 1."""
FSDP2 = {
    "fsdp_version": 2,
    "fsdp_reshard_after_forward": True,
    "fsdp_offload_params": False,
    "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
    "fsdp_min_num_params": 100000000,
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_cpu_ram_efficient_loading": False,
    "fsdp_activation_checkpointing": False,
}
MEGATRON = {
    "megatron_lm_tp_degree": 2,
    "megatron_lm_sequence_parallelism": True,
    "megatron_lm_pp_degree": 2,
    "megatron_lm_num_micro_batches": 4,
    "megatron_lm_recompute_activations": True,
    "megatron_lm_use_distributed_optimizer": True,
    "megatron_lm_gradient_clipping": 0.5,
}


def sizes(**values: int) -> dict[str, int]:
    """A parallelism_config."""
    return {f"parallelism_config_{name}": value for name, value in values.items()}


def write_config(path: Path, **changes: Any) -> Path:
    """A file as `accelerate config` leaves it."""
    usual = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "mixed_precision": "no"}
    config = ClusterConfig(**{**usual, "use_cpu": False, "debug": False, "num_processes": 1, **changes})
    config.to_yaml_file(str(path))
    return path


def write_deepspeed(path: Path, json_config: dict[str, Any], **changes: Any) -> Path:
    """The same with a DeepSpeed JSON file beside it."""
    (path.parent / "ds.json").write_text(json.dumps(json_config), encoding="utf-8")
    named = {"deepspeed_config_file": "ds.json", "zero3_init_flag": False}
    kind = {"distributed_type": "DEEPSPEED", "num_processes": 4, "mixed_precision": None}
    return write_config(path, **{**kind, "deepspeed_config": named, **changes})


def deepspeed(devices: int = 8, **changes: Any) -> dict[str, Any]:
    usual = {"gradient_accumulation_steps": 1, "zero3_init_flag": False}
    return {"distributed_type": "DEEPSPEED", "num_processes": devices, "deepspeed_config": {**usual, **changes}}


def merged(imported: ft.ImportedConfig, method: str = "lora") -> Asked:
    """The experiment into which the printed sections are pasted; raises where one of them is refused."""
    sections = yaml.safe_load(imported.yaml)
    mapping: dict[str, Any] = {**EXPERIMENT, "method": {"kind": method}}
    for name, section in sections.items():
        mapping[name] = {**mapping.get(name, {}), **section}
    return understand(mapping, source="merged")


def answers(imported: ft.ImportedConfig) -> dict[str, KeyAnswer]:
    return {answer.key: answer for answer in imported.keys}
