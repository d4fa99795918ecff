"""DeepSpeed's ZeRO as DDP, FSDP2 or HSDP: from the keys in an accelerate config, or from a DeepSpeed JSON file."""

from dataclasses import dataclass

from foretune.config.from_accelerate.cluster import Cluster
from foretune.config.from_accelerate.computing import take_precision
from foretune.config.from_accelerate.config_keys import ConfigKeys
from foretune.config.from_accelerate.deepspeed_optimizer import set_optimizer, set_schedule
from foretune.config.from_accelerate.draft import Draft
from foretune.config.from_accelerate.sharding import (
    is_sharded,
    offer,
    set_accumulation,
    set_clipping,
    sharding_of,
    share,
)

FILE_KEY = "deepspeed_config.deepspeed_config_file"
AUTO = "auto"
_SHARDS = {1: "optimizer states", 2: "optimizer states and gradients", 3: "weights, gradients and optimizer states"}


@dataclass(frozen=True)
class _Names:
    """The keys of the same choices in the two files."""

    stage: str
    offload_optimizer: str
    offload_param: str
    accumulation: str
    clipping: str


_INLINE = _Names(
    stage="deepspeed_config.zero_stage",
    offload_optimizer="deepspeed_config.offload_optimizer_device",
    offload_param="deepspeed_config.offload_param_device",
    accumulation="deepspeed_config.gradient_accumulation_steps",
    clipping="deepspeed_config.gradient_clipping",
)
_IN_JSON = _Names(
    stage="zero_optimization.stage",
    offload_optimizer="zero_optimization.offload_optimizer.device",
    offload_param="zero_optimization.offload_param.device",
    accumulation="gradient_accumulation_steps",
    clipping="gradient_clipping",
)


_REFUSED_BESIDE_JSON = (
    *(_INLINE.stage, _INLINE.offload_optimizer, _INLINE.offload_param, _INLINE.accumulation, _INLINE.clipping),
    *(f"deepspeed_config.offload_{what}_nvme_path" for what in ("optimizer", "param")),
    *("deepspeed_config.zero3_save_16bit_model", "mixed_precision"),
)


def from_deepspeed(keys: ConfigKeys, json_keys: ConfigKeys | None, cluster: Cluster, draft: Draft) -> None:
    """`json_keys` are those of `deepspeed_config_file`, if there is one: then they count."""
    if json_keys is None:
        stage = _set_zero(keys, _INLINE, cluster, draft)
        keys.answer("distributed_type", "translated", _engine(draft, stage))
        return
    keys.answer(FILE_KEY, "translated", "its keys are listed here too")
    for key in _REFUSED_BESIDE_JSON:
        keys.answer(key, "not needed", "beside deepspeed_config_file accelerate refuses it; the JSON file counts")
    stage = _set_zero(json_keys, _IN_JSON, cluster, draft)
    keys.answer("distributed_type", "translated", _engine(draft, stage))
    _set_batch(json_keys, cluster, draft)
    _set_precision(keys, json_keys, draft)
    set_optimizer(json_keys, draft)
    set_schedule(json_keys, draft)
    if _IN_JSON.clipping not in json_keys:
        draft.take("train.max_grad_norm", None)
        draft.same.append("No gradient clipping (train.max_grad_norm=null): the JSON file has no gradient_clipping.")


def _set_zero(keys: ConfigKeys, names: _Names, cluster: Cluster, draft: Draft) -> int:
    """Sets sharding, offload, accumulation and clipping; returns the stage."""
    if "zero_optimization" in keys:
        keys.problems.append(f'{keys.name("zero_optimization")}: should be a section, such as {{"stage": 2}}')
    stage = int(keys.choice(names.stage, ("0", "1", "2", "3"), "0" if names is _IN_JSON else "2"))
    group = keys.integer("zero_optimization.mics_shard_size", -1, at_least=-1)
    if group > 1 and cluster.devices % group == 0:
        text = share(draft, cluster, "hybrid", group)
        keys.answer("zero_optimization.mics_shard_size", "translated", text)
    else:
        text = share(draft, cluster, "full" if stage else "none")
    keys.answer(names.stage, "translated", text)
    _compare(stage, draft)
    _set_offload(keys, names, stage, draft)
    for key in (names.accumulation, names.clipping):
        if keys.get(key) == AUTO:
            keys.answer(key, "not needed", "auto is what the training script has; the experiment has its own value")
    if keys.get(names.accumulation) != AUTO:
        set_accumulation(keys, names.accumulation, draft)
    if keys.get(names.clipping) != AUTO:
        set_clipping(keys, names.clipping, draft)
    return stage


def _engine(draft: Draft, stage: int) -> str:
    return f"ZeRO-{stage} becomes parallel.sharding={sharding_of(draft)}; see above what differs"


def _compare(stage: int, draft: Draft) -> None:
    """In plain words: what stays as it was, and what does not."""
    draft.same.append(
        "Each device computes its own samples, gradients are averaged over all devices, and one optimizer step "
        "follows. The global batch is train.batch_size x train.gradient_accumulation x parallel.devices."
    )
    if not is_sharded(draft):
        if stage:
            draft.same.append("On one device ZeRO shards nothing either.")
        else:
            draft.same.append("ZeRO-0 shards nothing: every device holds the whole model, as with DDP.")
        return
    if stage == max(_SHARDS):
        draft.same.append(f"ZeRO-3 and FSDP2 both shard {_SHARDS[3]}, and gather weights when they are used.")
        draft.differs.append(
            "FSDP2 gathers whole blocks; ZeRO-3 gathers layers, and keeps small weights on every device. So memory and "
            "traffic differ a little."
        )
    else:
        draft.differs.append(
            f"ZeRO-{stage} shards {_SHARDS[stage]} only. parallel.sharding=full shards {_SHARDS[3]}: each device needs "
            "less memory. Blocks are gathered in the forward and the backward pass, which is more traffic between "
            "devices: 1.5 times as much if all weights are trained, and many times as much for an adapter."
        )
        draft.differs.append(
            "If model, gradients and optimizer states fit on one device, parallel.sharding=none (DDP) is faster and "
            "nearer to it. With an adapter, optimizer states and gradients are small, so that is the usual choice."
        )
    draft.differs.append("Checkpoints have whole tensors and load on any number of devices; DeepSpeed's are not read.")


def _set_offload(keys: ConfigKeys, names: _Names, stage: int, draft: Draft) -> None:
    devices = ("none", "cpu", "nvme")
    where = keys.choice(names.offload_optimizer, devices, "none")
    if where == "cpu":
        _offload_optimizer(keys, names.offload_optimizer, draft)
    elif where == "nvme":
        text = "optimizer states cannot be moved to NVMe. Nearest: levers.optimizer_offload=true, to host memory"
        keys.answer(
            names.offload_optimizer, "not supported", f"{text}, without sharding" if is_sharded(draft) else text
        )
    keys.answer(names.offload_optimizer, "not needed", "optimizer states stay on the device here too")
    if keys.boolean("zero_optimization.cpu_offload"):  # its name in earlier versions of DeepSpeed
        _offload_optimizer(keys, "zero_optimization.cpu_offload", draft)
    where = keys.choice(names.offload_param, devices, "none")
    if where != "none" and stage == max(_SHARDS):
        nearest = (
            "more devices, of which each holds a smaller part, or levers.gradient_checkpointing=1"
            if is_sharded(draft)
            else "levers.block_swap=N with levers.gradient_checkpointing=1, which keeps the frozen weights of N blocks "
            "in host memory (adapters only)"
        )
        keys.answer(names.offload_param, "not supported", f"weights are not moved to {where}. Nearest: {nearest}")
    elif where != "none":
        keys.answer(names.offload_param, "not needed", "DeepSpeed offloads weights with ZeRO-3 only")
    keys.answer(names.offload_param, "not needed", "weights stay on the device here too")


def _offload_optimizer(keys: ConfigKeys, key: str, draft: Draft) -> None:
    offer(keys, key, draft, "levers.optimizer_offload", ": states in host memory, update on the CPU, as DeepSpeed does")
    if "levers.optimizer_offload" not in draft.settings:
        draft.differs.append(
            "Optimizer states stay on the devices, each with its part. The other way is DDP with host memory: "
            "parallel.sharding=none levers.optimizer_offload=true. Then each process keeps all optimizer states in "
            "host memory, and each device the whole model and its gradients."
        )


def _set_batch(keys: ConfigKeys, cluster: Cluster, draft: Draft) -> None:
    """train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x devices."""
    micro, whole = "train_micro_batch_size_per_gpu", "train_batch_size"
    for key in (micro, whole):
        if keys.get(key) == AUTO:
            keys.answer(key, "not needed", "auto is what the training script has; set train.batch_size")
    passes = draft.settings.get("train.gradient_accumulation", 1) * cluster.devices
    per_device = keys.integer(micro, 0) if keys.get(micro) != AUTO else 0
    total = keys.integer(whole, 0) if keys.get(whole) != AUTO else 0
    if per_device and total and total != per_device * passes:
        keys.problems.append(
            f"{keys.name(whole)}: {total} is not {per_device} x {passes} (samples per device x accumulation x "
            f"devices). Write {per_device * passes}, or leave it out"
        )
    elif total and total % passes:
        keys.problems.append(f"{keys.name(whole)}: {total} samples cannot be shared equally by {passes} passes")
    size = per_device or total // passes
    if size:
        taken = draft.take("train.batch_size", size)
        keys.answer(micro, "translated", taken)
        keys.answer(whole, "translated", f"{taken} x accumulation x devices")


def _set_precision(keys: ConfigKeys, json_keys: ConfigKeys, draft: Draft) -> None:
    """The dtype whose section is enabled; `auto` takes the one of mixed_precision."""
    asked = keys.choice("mixed_precision", ("no", "fp16", "bf16", "fp8"), "no")
    flags = {"bf16": ("bf16.enabled", "bfloat16.enabled"), "fp16": ("fp16.enabled",)}
    for precision, names in flags.items():
        for key in names:
            enabled = asked == precision if json_keys.get(key) == AUTO else json_keys.boolean(key)
            if enabled:
                take_precision(json_keys, key, draft, precision)
                _set_weight_dtype(json_keys, draft)
            json_keys.answer(key, "not needed", "off")
    if "train.precision" not in draft.settings:
        draft.take("train.precision", "fp32")
        draft.same.append("fp32 (train.precision=fp32): the JSON file enables neither bf16 nor fp16.")


def _set_weight_dtype(keys: ConfigKeys, draft: Draft) -> None:
    weights, states = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"
    if not keys.boolean(weights):
        return
    if keys.boolean(states) and draft.refusal("train.weight_dtype", "bf16") is None:
        taken = draft.take("train.weight_dtype", "bf16")
        keys.answer(weights, "translated", taken)
        keys.answer(states, "translated", taken)
    keys.answer(
        weights, "not supported", "states have the dtype of the weights. Nearest: train.weight_dtype=bf16, for both"
    )
