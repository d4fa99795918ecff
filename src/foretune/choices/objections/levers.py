"""What trades speed for memory: what goes with what."""

from collections.abc import Iterable

from foretune.catalog import FamilyFacts
from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter
from foretune.choices.objections.base import DeviceType, Objection, refused, warning
from foretune.choices.training import AttentionBackend

# The kernels that torch has, by where it runs. On a CPU and on Apple's GPUs all but one of them are for other devices.
_KERNELS: dict[DeviceType, tuple[AttentionBackend, ...]] = {
    "cpu": ("auto", "math", "flash"),
    "cuda": ("auto", "math", "efficient", "flash", "cudnn"),
    "rocm": ("auto", "math", "efficient", "flash"),
    "mps": ("auto", "math"),
}


def lever_objections(experiment: Experiment, facts: FamilyFacts, device_type: DeviceType | None) -> Iterable[Objection]:
    yield from _checkpointing_objections(experiment, facts)
    yield from _dropout_objections(experiment, device_type)
    if experiment.levers.vae_tiling and not facts.has_latents:
        yield warning(f"levers.vae_tiling has no effect: {facts.name} models have no autoencoder")
    yield from _swap_objections(experiment)
    yield from _offload_objections(experiment)
    yield from _compile_objections(experiment)
    yield from _attention_objections(experiment, device_type)
    yield from _layout_objections(experiment, facts)
    yield from _host_objections(experiment, device_type)
    yield from _fused_backward_objections(experiment)


def _checkpointing_objections(experiment: Experiment, facts: FamilyFacts) -> Iterable[Objection]:
    levers = experiment.levers
    share, segment, stride = levers.gradient_checkpointing, levers.checkpoint_segment, levers.checkpoint_stride
    parts_only = levers.checkpoint_parts == "feed_forward"
    asked = [
        *(["levers.checkpoint_segment"] if segment > 1 else []),
        *(["levers.checkpoint_stride"] if stride is not None else []),
        *(["levers.checkpoint_parts"] if parts_only else []),
    ]
    if asked and share == 0:
        yield refused(
            f"{asked[0]}: no block is checkpointed while levers.gradient_checkpointing is 0. "
            "Nearest: levers.gradient_checkpointing=1"
        )
    if stride is not None and 0 < share < 1:
        yield refused(
            f"levers.checkpoint_stride: it sets which blocks are checkpointed, and so does "
            f"levers.gradient_checkpointing={share:g}. Nearest: levers.gradient_checkpointing=1, or "
            "levers.checkpoint_stride=null"
        )
    if stride is not None and stride < segment:
        yield refused(
            f"levers.checkpoint_stride: segments of {segment} blocks, one at every {stride}. block, would overlap. "
            f"Nearest: levers.checkpoint_stride={segment}"
        )
    if parts_only and segment > 1:
        yield refused(
            "levers.checkpoint_segment: feed-forward parts of neighbouring blocks have attention between them and are "
            "checkpointed one by one. Nearest: levers.checkpoint_segment=1, or levers.checkpoint_parts=blocks"
        )
    if segment > 1 and facts.is_unet:
        yield refused(
            f"levers.checkpoint_segment: blocks of a {facts.name} model have skip connections, so segments "
            "would save little. Nearest: levers.checkpoint_segment=1"
        )
    if parts_only and not facts.has_feed_forwards:
        yield refused(
            f"levers.checkpoint_parts: a {facts.name} model has no feed-forward parts. "
            "Nearest: levers.checkpoint_parts=blocks"
        )


def _dropout_objections(experiment: Experiment, device_type: DeviceType | None) -> Iterable[Objection]:
    """torch restores the random state of CUDA devices for a recomputation, and not that of Apple's GPUs."""
    method, levers = experiment.method, experiment.levers
    has_dropout = isinstance(method, Adapter) and method.dropout > 0
    if device_type == "mps" and has_dropout and levers.gradient_checkpointing > 0:
        yield refused(
            "method.dropout: on mps, torch recomputes checkpointed blocks with other random numbers, so that the "
            "backward pass would drop other inputs than the forward pass. Nearest: method.dropout=0, or "
            "levers.gradient_checkpointing=0"
        )


def _swap_objections(experiment: Experiment) -> Iterable[Objection]:
    levers, key = experiment.levers, "levers.block_swap"
    if not levers.block_swap:
        return
    if experiment.method.kind == "full":
        yield refused(
            f"{key}: weights that are trained must stay on the device, and method.kind=full trains all. "
            f"Nearest: method.kind=lora, or {key}=0 with levers.optimizer_offload=true"
        )
    is_strided = levers.checkpoint_stride not in (None, levers.checkpoint_segment)
    if levers.gradient_checkpointing < 1 or is_strided or levers.checkpoint_parts != "blocks":
        changes = [
            *(["levers.gradient_checkpointing=1"] if levers.gradient_checkpointing < 1 else []),
            *(["levers.checkpoint_stride=null"] if is_strided else []),
            *(["levers.checkpoint_parts=blocks"] if levers.checkpoint_parts != "blocks" else []),
        ]
        yield refused(
            f"{key}: a block that is not checkpointed keeps its weights on the device until the backward pass. "
            f"Nearest: {' '.join(changes)}"
        )


def _offload_objections(experiment: Experiment) -> Iterable[Objection]:
    levers, key = experiment.levers, "levers.activation_offload_parts"
    if levers.activation_offload_parts == "blocks":
        return
    if not levers.activation_offload:
        yield refused(f"{key}: nothing goes to the host. Nearest: levers.activation_offload=true")
    if levers.block_swap:
        yield refused(
            f"{key}: what attention saves stays in memory although its block is checkpointed, and the weights of "
            f"attention stay on the device. Nearest: {key}=blocks, or levers.block_swap=0"
        )


def _compile_objections(experiment: Experiment) -> Iterable[Objection]:
    levers = experiment.levers
    if levers.compile == "off":
        return
    if experiment.method.kind == "dora":
        yield refused(
            "levers.compile: peft's DoRA asks in each pass of what kind a weight is, which torch cannot compile. "
            "Nearest: method.kind=lora, or levers.compile=off"
        )
    if levers.checkpoint_parts == "feed_forward" and levers.gradient_checkpointing > 0:
        yield refused(
            "levers.compile: a checkpointed part would be inside a compiled block, which torch cannot "
            "compile. Nearest: levers.checkpoint_parts=blocks, or levers.compile=off"
        )
    if levers.activation_offload and levers.activation_offload_parts == "attention":
        yield refused(
            "levers.compile: activations of attention cannot be separated in a compiled block. "
            "Nearest: levers.activation_offload_parts=blocks, or levers.compile=off"
        )


def _attention_objections(experiment: Experiment, device_type: DeviceType | None) -> Iterable[Objection]:
    asked = experiment.levers.attention
    if device_type is not None and asked not in _KERNELS[device_type]:
        others = [kernel for kernel in _KERNELS[device_type] if kernel != "auto"]
        yield refused(
            f"levers.attention: torch has no {asked} kernel for {device_type}; it has {' and '.join(others)}. "
            f"Nearest: levers.attention={'flash' if 'flash' in others else 'auto'}"
        )


def _layout_objections(experiment: Experiment, facts: FamilyFacts) -> Iterable[Objection]:
    if experiment.levers.channels_last and not facts.is_unet:
        yield refused(
            f"levers.channels_last: {facts.name} models are transformers; channels_last only affects convolutions. "
            "Nearest: levers.channels_last=false"
        )


def _host_objections(experiment: Experiment, device_type: DeviceType | None) -> Iterable[Objection]:
    """On a device without memory of its own nothing is saved by going elsewhere."""
    levers = experiment.levers
    asked = [
        *(["levers.activation_offload"] if levers.activation_offload else []),
        *(["levers.block_swap"] if levers.block_swap else []),
    ]
    if device_type in ("cpu", "mps"):
        for key in asked:
            yield warning(
                f"{key}: {device_type} computes in the host's memory, so that this costs copies and saves none"
            )


def _fused_backward_objections(experiment: Experiment) -> Iterable[Objection]:
    """What needs all gradients at once cannot be where none of them stays."""
    train, key = experiment.train, "levers.fused_backward"
    if not experiment.levers.fused_backward:
        return
    if train.max_grad_norm is not None:
        yield refused(
            f"{key}: clipping needs the norm of all gradients before the first update. Nearest: "
            f"train.max_grad_norm=null, or {key}=false"
        )
    if train.gradient_accumulation > 1:
        yield refused(
            f"{key}: each pass updates the weights, so that nothing can be accumulated. Nearest: "
            f"train.gradient_accumulation=1, or {key}=false"
        )
    if train.precision == "fp16":
        yield refused(
            f"{key}: fp16 skips steps whose gradients overflow, which is known only after all of them. Nearest: "
            f"train.precision=bf16, or {key}=false"
        )
    if experiment.optimizer.spec.finds_lr:
        yield refused(
            f"{key}: {experiment.optimizer.kind} finds one learning rate from all gradients at once. Nearest: "
            f"optimizer.kind=adamw, or {key}=false"
        )
