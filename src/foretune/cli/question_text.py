"""An experiment in words: what is trained and how, as far as it decides what a step takes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretune.choices.experiment import Experiment
    from foretune.choices.method import Method
    from foretune.choices.training import Levers
    from foretune.config.reading import Asked

_NAMES = {"lora": "LoRA", "dora": "DoRA", "rslora": "rsLoRA", "loha": "LoHa", "lokr": "LoKr"}


def question_text(asked: "Asked") -> str:
    """What is trained, and how; of choices at their default only those that every step has."""
    experiment = asked.experiment
    return ", ".join([_trained(experiment), *_numbers(experiment), *_levers(experiment.levers)])


def _trained(experiment: "Experiment") -> str:
    numbers = experiment.quantize.denoiser
    base = "" if numbers in ("none", "float8-training") else f" on a base in {numbers}"
    return f"{_method(experiment.method)} in {experiment.train.precision}{base}"


def _method(method: "Method") -> str:
    if method.kind == "full":
        return "full fine-tuning"
    if method.kind == "oft":
        return f"OFT in blocks of {method.block_size}"
    return f"{_NAMES[method.kind]} of rank {method.rank}"


def _numbers(experiment: "Experiment") -> Iterator[str]:
    train, optimizer, quantize = experiment.train, experiment.optimizer, experiment.quantize
    if quantize.denoiser == "float8-training":
        yield "products in float8"
    if quantize.text_encoders != "none":
        yield f"text encoders in {quantize.text_encoders}"
    if train.weights != "fp32":
        yield f"weights in {train.weights}"
    if optimizer.kind != "adamw":
        yield optimizer.kind
    if optimizer.compensation != "none":
        yield f"{optimizer.compensation} updates"


def _levers(levers: "Levers") -> Iterator[str]:
    yield _computed_again(levers)
    if levers.activation_offload:
        attention = levers.activation_offload_parts == "attention"
        yield "what attention keeps on the host" if attention else "activations on the host"
    if levers.swapped_blocks:
        yield f"{levers.swapped_blocks} {'block' if levers.swapped_blocks == 1 else 'blocks'} swapped"
    if levers.optimizer_on_host:
        yield "optimizer on the host"
    if levers.ema_on_host:
        yield "average on the host"
    if levers.fused_backward:
        yield "updates in the backward pass"
    if levers.attention != "auto":
        yield f"{levers.attention} attention"
    if levers.channels_last:
        yield "channels last"
    if levers.compile != "off":
        yield "blocks compiled"


def _computed_again(levers: "Levers") -> str:
    share, width, stride = levers.gradient_checkpointing, levers.checkpoint_segment, levers.checkpoint_stride
    what = "block" if width == 1 else f"segment of {width} blocks"
    if share <= 0:
        return "no block computed again"
    if stride is not None:
        which = f"a {what} in every {stride} blocks"
    else:
        which = f"every {what}" if share >= 1 else f"{share:g} of the {what.replace('segment', 'segments')}"
        which = f"{which}s" if share < 1 and width == 1 else which
    parts = "the feed-forward part of " if levers.checkpoint_parts == "feed_forward" else ""
    return f"{parts}{which} computed again"
