"""What several devices cannot do together, or not yet."""

from collections.abc import Iterable

from foretune.catalog import FamilyFacts
from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import DeviceType, Objection, refused, warning

_SHARDED_OPTIMIZERS = ("adamw",)
"""Their states are sharded as the weights are."""


def parallel_objections(
    experiment: Experiment, facts: FamilyFacts, device_type: DeviceType | None, *, only_planned: bool
) -> Iterable[Objection]:
    parallel = experiment.parallel
    if only_planned and parallel.sharding == "hybrid" and parallel.shard_devices is None:
        yield refused(
            "parallel.shard_devices: a plan does not know how many devices a node has. "
            "Nearest: parallel.shard_devices=8"
        )
    if parallel.sharding != "none" and parallel.devices == 1:
        yield refused(
            f"parallel.sharding: {parallel.sharding} takes several devices, and parallel.devices is 1. "
            "Nearest: parallel.sharding=none, or parallel.devices=2"
        )
    if parallel.shard_devices is not None and parallel.sharding != "hybrid":
        yield refused("parallel.shard_devices is for parallel.sharding=hybrid. Nearest: parallel.shard_devices=null")
    group = parallel.shard_devices
    if parallel.sharding == "hybrid" and group is not None and (parallel.devices % group or parallel.devices == group):
        yield refused(
            f"parallel.shard_devices: {parallel.devices} devices are not several groups of {group}. "
            "Nearest: parallel.sharding=full"
        )
    if parallel.devices == 1:
        return
    if device_type == "mps":
        yield refused("parallel.devices: an Apple GPU trains alone. Nearest: parallel.devices=1")
    if experiment.levers.fused_backward:
        yield refused(
            "levers.fused_backward: it updates weights before the gradients of the other devices are there. "
            "Nearest: levers.fused_backward=false"
        )
    if parallel.sharding != "none":
        yield from _sharding_objections(experiment, facts, only_planned=only_planned)


def _sharding_objections(experiment: Experiment, facts: FamilyFacts, *, only_planned: bool) -> Iterable[Objection]:
    alike = "Nearest: parallel.sharding=none"
    if facts.keeps_fp32 and experiment.method.kind == "full" and experiment.train.weight_dtype == "bf16":
        text = (
            f"train.weight_dtype: {facts.name} models keep some weights of each block in fp32, and FSDP2 shards blocks "
            "of one dtype, so that this cannot be trained yet. Nearest: train.weight_dtype=fp32, or "
            "parallel.sharding=none"
        )
        yield warning(text) if only_planned else refused(text)
    if experiment.quantize.denoiser != "none":
        yield refused(f"quantize.denoiser: a quantised base is not sharded yet. {alike}")
    if experiment.train.precision == "fp16":
        yield refused(
            "train.precision: the loss scale of fp16 is not shared between shards yet. Nearest: train.precision=bf16"
        )
    optimizer = experiment.optimizer
    if optimizer.kind not in _SHARDED_OPTIMIZERS or optimizer.compensation != "none":
        yield refused(f"optimizer.kind: the state of this optimizer is not sharded yet. Nearest: adamw; or {alike}")
    if experiment.levers.channels_last:
        yield refused("levers.channels_last: FSDP2 shards contiguous weights only. Nearest: levers.channels_last=false")
    if experiment.levers.checkpoint_segment > 1:
        yield refused(
            "levers.checkpoint_segment: segments of several blocks are not sharded yet. "
            "Nearest: levers.checkpoint_segment=1"
        )
    if experiment.levers.block_swap:
        yield refused("levers.block_swap: sharded blocks are gathered, not swapped. Nearest: levers.block_swap=0")
    if experiment.levers.optimizer_offload or experiment.levers.ema_offload:
        yield refused(f"levers.optimizer_offload, levers.ema_offload: not with sharding yet. {alike}")
    if experiment.levers.activation_offload:
        yield refused(
            "levers.activation_offload: not with sharding yet. Nearest: levers.gradient_checkpointing=1 with "
            "levers.activation_offload=false, or parallel.sharding=none"
        )
    if experiment.method.kind not in ("full", "lora", "rslora"):
        yield refused(
            f"method.kind: {experiment.method.kind} is not sharded yet. Nearest: method.kind=lora; or {alike}"
        )
