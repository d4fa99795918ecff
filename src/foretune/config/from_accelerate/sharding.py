"""How the devices share the model: FSDP, parallelism_config and Megatron-LM as DDP, FSDP2 or HSDP."""

from collections.abc import Sequence
from math import prod

from foretune.choices.running import Sharding
from foretune.config.from_accelerate.cluster import Cluster
from foretune.config.from_accelerate.config_keys import ConfigKeys
from foretune.config.from_accelerate.draft import Draft

# In the order in which FSDP1 numbers them, from 1.
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_KEEPS_GATHERED = ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")
_ENGINES: dict[Sharding, str] = {"none": "DDP", "full": "FSDP2", "hybrid": "HSDP"}
_FSDP, _SIZES, _MEGATRON = "fsdp_config.fsdp", "parallelism_config.parallelism_config", "megatron_lm_config.megatron_lm"


def share(draft: Draft, cluster: Cluster, sharding: Sharding, shard_devices: int | None = None) -> str:
    """Sets the sharding, or the simpler one that is the same on these devices; returns what was set."""
    group = shard_devices or (cluster.devices_per_machine if sharding == "hybrid" else cluster.devices)
    if cluster.devices == 1:
        return "one device: there is nothing to share (parallel.sharding=none)"
    if sharding == "hybrid" and group == cluster.devices:
        sharding = "full"
    if sharding == "none" or group == 1:
        return f"{draft.take('parallel.sharding', 'none')} ({_ENGINES['none']})"
    if sharding == "full":
        return f"{draft.take('parallel.sharding', 'full')} ({_ENGINES['full']})"
    # Both at once: the size of a group goes with hybrid sharding only.
    draft.settings["parallel.sharding"] = "hybrid"
    size = draft.take("parallel.shard_devices", group)
    return f"parallel.sharding=hybrid {size} ({_ENGINES['hybrid']})"


def sharding_of(draft: Draft) -> str:
    return str(draft.settings.get("parallel.sharding", "none"))


def is_sharded(draft: Draft) -> bool:
    return sharding_of(draft) != "none"


def from_fsdp(keys: ConfigKeys, cluster: Cluster, draft: Draft) -> None:
    """Fully Sharded Data Parallel, version 1 and 2."""
    version = keys.choice(f"{_FSDP}_version", ("1", "2"), "1")
    strategy = _strategy(keys, version)
    replicas = read_replicas(keys, cluster, draft)
    if strategy == "NO_SHARD":
        text = share(draft, cluster, "none")
    elif strategy.startswith("HYBRID") or replicas > 1:
        group = cluster.devices // replicas if replicas > 1 else None
        text = share(draft, cluster, "hybrid", group)
    else:
        text = share(draft, cluster, "full")
    keys.answer("distributed_type", "translated", text)
    for key in (f"{_FSDP}_sharding_strategy", f"{_FSDP}_reshard_after_forward"):
        keys.answer(key, "translated", text)
    if version == "1":
        keys.answer(f"{_FSDP}_version", "translated", "FSDP1 becomes FSDP2, its successor in torch")
    keys.answer(f"{_FSDP}_version", "not needed", "FSDP2 is what parallel.sharding=full uses")
    _levers_of_fsdp(keys, draft)
    if is_sharded(draft):
        _compare_fsdp(draft, strategy)


def _strategy(keys: ConfigKeys, version: str) -> str:
    """The sharding strategy. Version 2 only has the choice to keep gathered weights, which is SHARD_GRAD_OP."""
    strategy, reshard = f"{_FSDP}_sharding_strategy", f"{_FSDP}_reshard_after_forward"
    if version == "2":
        keys.answer(strategy, "not needed", "with fsdp_version 2, accelerate does not use it")
        return "FULL_SHARD" if keys.boolean(reshard, default=True) else "SHARD_GRAD_OP"
    if strategy in keys:
        keys.answer(reshard, "not needed", "fsdp_sharding_strategy comes first")
    elif isinstance(keys.get(reshard), bool):
        keys.answer(reshard, "not needed", "true and false are for fsdp_version 2")
        return "FULL_SHARD"
    key = strategy if strategy in keys else reshard
    numbers = [str(number) for number in range(1, len(_STRATEGIES) + 1)]
    found = keys.choice(key, (*_STRATEGIES, *numbers), "FULL_SHARD")
    return _STRATEGIES[int(found) - 1] if found.isdigit() else found


def _levers_of_fsdp(keys: ConfigKeys, draft: Draft) -> None:
    key = f"{_FSDP}_activation_checkpointing"
    if keys.boolean(key):
        keys.answer(key, "translated", draft.take("levers.gradient_checkpointing", 1.0))
    keys.answer(key, "not needed", "off here too, unless the experiment sets levers.gradient_checkpointing")
    key = f"{_FSDP}_activation_checkpointing_offload"
    if keys.boolean(key):
        offer(keys, key, draft, "levers.activation_offload")
    key = f"{_FSDP}_offload_params"
    if keys.boolean(key):
        offer(
            keys,
            key,
            draft,
            "levers.optimizer_offload",
            "; FSDP also moves weights and gradients to the host, which stay on the device here",
        )


def offer(keys: ConfigKeys, key: str, draft: Draft, setting: str, remark: str = "") -> None:
    """Answers a key with a lever that is switched on, or with why that does not go with the other settings."""
    refusal = draft.refusal(setting, True)
    if refusal is None:
        keys.answer(key, "translated", f"{draft.take(setting, True)}{remark}")
    else:
        saving = "levers.gradient_checkpointing=1 and more devices also save memory"
        keys.answer(key, "not supported", f"{refusal}; {saving}")


def _compare_fsdp(draft: Draft, strategy: str) -> None:
    where = "inside each group of devices" if sharding_of(draft) == "hybrid" else "over all devices"
    draft.same.append(
        f"Weights, gradients and optimizer states are sharded {where}, and the weights of a block are gathered when it "
        "runs. Sharding changes nothing that is computed, apart from rounding."
    )
    if strategy in _KEEPS_GATHERED:
        draft.differs.append(
            f"{strategy} keeps gathered weights from the forward to the backward pass. Here each block is sharded "
            "again after its forward pass and gathered a second time: less memory, more traffic."
        )
    draft.differs.append(
        "Every repeated block of the model is one FSDP unit. accelerate gathers weights and reduces gradients in the "
        "dtype of mixed_precision; here gradients are summed in fp32, and only full fine-tuning in bf16 gathers "
        "weights in bf16 (parallel.gather_dtype)."
    )


def read_replicas(keys: ConfigKeys, cluster: Cluster, draft: Draft) -> int:
    """The number of copies of the sharded model, from parallelism_config."""
    replicas = keys.integer(f"{_SIZES}_dp_replicate_size", 1)
    shards = keys.integer(f"{_SIZES}_dp_shard_size", 1)
    names = ("tp_size", "cp_size", "sp_size")
    together = share_samples(keys, draft, [f"{_SIZES}_{name}" for name in names])
    if replicas * shards * together not in (1, cluster.devices):
        keys.problems.append(
            f"parallelism_config: {replicas} x {shards} x {together} devices are not the {cluster.devices} of "
            "num_processes. Write sizes whose product is num_processes"
        )
        return 1
    for name in ("dp_replicate_size", "dp_shard_size"):
        keys.answer(f"{_SIZES}_{name}", "translated", "the size of the groups in parallel.sharding")
    return replicas


def share_samples(keys: ConfigKeys, draft: Draft, sizes: Sequence[str]) -> int:
    """Reads the sizes of groups of devices that compute one sample together, which no device does here."""
    found = {key: keys.integer(key, 1) for key in sizes}
    for key, size in found.items():
        if size > 1:
            keys.answer(
                key,
                "not supported",
                "tensor, pipeline, context and sequence parallelism are not supported. Nearest: "
                "parallel.sharding=full, which shards weights, gradients and optimizer states over the same devices",
            )
        keys.answer(key, "not needed", "1 is off")
    together = prod(found.values())
    if together > 1:
        draft.differs.append(
            f"There, {together} devices compute each sample together; here every device computes its own, so the "
            f"global batch is {together} times as large. To keep it, divide train.batch_size or "
            f"train.gradient_accumulation by {together}."
        )
    return together


def from_megatron(keys: ConfigKeys, cluster: Cluster, draft: Draft) -> None:
    """Megatron-LM: data parallelism stays, the other kinds become sharding."""
    text = share(draft, cluster, "full")
    keys.answer(
        "distributed_type", "not supported", f"Megatron-LM's engine is for its own language models. Nearest: {text}"
    )
    sizes = ("tp_degree", "pp_degree", "context_parallel_size")
    share_samples(keys, draft, [f"{_MEGATRON}_{name}" for name in sizes])
    set_accumulation(keys, f"{_MEGATRON}_num_micro_batches", draft)
    set_clipping(keys, f"{_MEGATRON}_gradient_clipping", draft)
    key = f"{_MEGATRON}_recompute_activations"
    if keys.boolean(key):
        taken = draft.take("levers.gradient_checkpointing", 1.0)
        keys.answer(key, "translated", f"{taken}, which recomputes whole blocks instead of attention alone")
    key = f"{_MEGATRON}_optimizer_cpu_offload"
    if keys.boolean(key):
        offer(keys, key, draft, "levers.optimizer_offload")
    if is_sharded(draft):
        draft.same.append("Optimizer states and gradients are sharded, as by Megatron-LM's distributed optimizer.")
        draft.differs.append("Weights are sharded too, and the weights of a block are gathered when it runs.")


def set_accumulation(keys: ConfigKeys, key: str, draft: Draft) -> None:
    if key in keys:
        steps = keys.integer(key, 1)
        keys.answer(key, "translated", draft.take("train.gradient_accumulation", steps))


def set_clipping(keys: ConfigKeys, key: str, draft: Draft) -> None:
    """0 means no clipping to DeepSpeed and to Megatron-LM."""
    if key in keys:
        largest = keys.number(key, None) or None
        keys.answer(key, "translated", draft.take("train.max_grad_norm", largest))
