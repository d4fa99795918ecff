"""An experiment in words: what is trained and how, as far as it decides what a step takes."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from foretune.choices.running import ENGINES
from foretune.core.units import counted_text, duration_text, share_text

if TYPE_CHECKING:
    from foretune.choices.experiment import Experiment
    from foretune.choices.method import Method
    from foretune.choices.training import Levers
    from foretune.config.reading import Asked

_LEVERS: "Mapping[str, Callable[[Levers], str]]" = {
    "vae_tiling": lambda _: "VAE tiling",
    "activation_offload": lambda levers: (
        f"activation offload{' (attention)' if levers.activation_offload_parts == 'attention' else ''}"
    ),
    "block_swap": lambda levers: (
        f"block swap ({counted_text(levers.block_swap, 'blocks')}"
        f"{'' if levers.block_swap_prefetch == 1 else f', {levers.block_swap_prefetch} ahead'})"
    ),
    "compile": lambda _: "compiled blocks",
    "attention": lambda levers: f"{levers.attention} attention",
    "fused_backward": lambda _: "fused backward pass",
    "optimizer_offload": lambda _: "optimizer on the host",
    "ema_offload": lambda _: "EMA on the host",
}
"""Levers that are not at their default, in words; others are called by their keys."""
_SAID_WITH_OTHERS = frozenset(
    {"gradient_checkpointing", "checkpoint_segment", "checkpoint_stride", "checkpoint_parts",
     "activation_offload_parts", "block_swap_prefetch", "cache_latents", "cache_text"}
)  # fmt: skip
METHOD_NAMES = {
    "full": "full fine-tuning",
    "lora": "LoRA",
    "dora": "DoRA",
    "rslora": "rsLoRA",
    "loha": "LoHa",
    "lokr": "LoKr",
    "oft": "OFT",
}


def question_text(asked: "Asked") -> str:
    """What is trained, and how; of choices at their default only those that every step has."""
    experiment = asked.experiment
    choices = [_method(experiment.method), *_dtypes(experiment), *_levers(experiment.levers)]
    if experiment.train.gradient_accumulation > 1:
        choices.append(f"gradient accumulation {experiment.train.gradient_accumulation}")
    parallel = experiment.parallel
    if parallel.devices > 1:
        choices.append(f"one of {parallel.devices} devices ({ENGINES[parallel.sharding]})")
    return ", ".join(choices)


def decision_lines(asked: "Asked", *, has_length: bool, has_synthetic_data: bool) -> Iterator[str]:
    """What will be trained, on what and for how long, a line each. Without `has_length` the command decides that."""
    experiment, model = asked.experiment, asked.model
    train, validation = experiment.train, experiment.validation
    note = "" if model.note is None else f" ({model.note})"
    yield f"Model: {experiment.model}{note}"
    yield f"Method: {question_text(asked)}, batch {train.batch_size}"
    yield f"Data: {'synthetic latents and captions' if has_synthetic_data else _data(experiment)}, {_size(experiment)}"
    yield f"Optimizer: {_schedule(experiment)}"
    if has_length:
        every = "" if validation.every is None else f", validated every {counted_text(validation.every, 'steps')}"
        yield f"Length: {_length(experiment)}{every}"


def _length(experiment: "Experiment") -> str:
    train = experiment.train
    if train.steps is not None:
        return counted_text(train.steps, "steps")
    return duration_text(train.seconds) if train.seconds is not None else counted_text(train.epochs or 0, "epochs")


def _data(experiment: "Experiment") -> str:
    data = experiment.data
    place = data.encoded or getattr(data, "path", None) or ", ".join(one.path for one in getattr(data, "folders", ()))
    kind = "encoded" if data.encoded is not None else data.kind
    return f"{place} ({kind})" if place else f"generated {kind}"


def _size(experiment: "Experiment") -> str:
    data = experiment.data
    frames = "" if data.num_frames is None else f", {counted_text(data.num_frames, 'frames')}"
    return ("the model's own size" if data.resolution is None else f"{data.resolution} px") + frames


def _schedule(experiment: "Experiment") -> str:
    optimizer = experiment.optimizer
    warmup = f" after {counted_text(optimizer.warmup_steps, 'warm-up steps')}" if optimizer.warmup_steps else ""
    return f"{optimizer.kind}, learning rate {optimizer.lr:g}, {optimizer.schedule}{warmup}"


def subject_text(asked: "Asked") -> str:
    """What is trained, without the settings that a search varies."""
    experiment = asked.experiment
    return f"{_method(experiment.method)}, {experiment.train.precision}"


def _method(method: "Method") -> str:
    if method.kind == "full":
        return METHOD_NAMES["full"]
    if method.kind == "oft":
        return f"{METHOD_NAMES['oft']}, block size {method.block_size}"
    return f"{METHOD_NAMES[method.kind]} rank {method.rank}"


def _dtypes(experiment: "Experiment") -> Iterator[str]:
    train, optimizer, quantize = experiment.train, experiment.optimizer, experiment.quantize
    yield train.precision
    if quantize.denoiser == "float8-training":
        yield "float8 matmuls"
    elif quantize.denoiser != "none":
        yield f"{quantize.denoiser} base"
    if quantize.text_encoders != "none":
        yield f"{quantize.text_encoders} text encoders"
    if train.weight_dtype != "fp32":
        yield f"{train.weight_dtype} trained weights"
    if optimizer.kind != "adamw":
        yield optimizer.kind
    if optimizer.compensation != "none":
        yield {"kahan": "Kahan summation", "stochastic": "stochastic rounding"}[optimizer.compensation]


def _levers(levers: "Levers") -> Iterator[str]:
    yield _checkpointing(levers)
    for name, field in type(levers).model_fields.items():
        value = getattr(levers, name)
        if name not in _SAID_WITH_OTHERS and value != field.get_default():
            yield _LEVERS[name](levers) if name in _LEVERS else _plain_words(name, value)


def _plain_words(name: str, value: object) -> str:
    """For a lever without words of its own."""
    return name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value}"


def _checkpointing(levers: "Levers") -> str:
    share, width, stride = levers.gradient_checkpointing, levers.checkpoint_segment, levers.checkpoint_stride
    if share <= 0:
        return "gradient checkpointing off"
    units = "blocks" if width == 1 else f"segments of {width} blocks"
    if stride is not None:
        which = f"{'one block' if width == 1 else f'{width} blocks'} in every {stride}"
    else:
        which = f"all {units}" if share >= 1 else f"{share_text(share)} of the {units}"
    parts = " (feed-forward part)" if levers.checkpoint_parts == "feed_forward" else ""
    return f"gradient checkpointing on {which}{parts}"
