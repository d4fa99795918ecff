"""Settings that take less memory, in the order of what they cost: first speed, then the result."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, Lora
from foretune.plan.planning import Footprint

EXPANDABLE = "PYTORCH_ALLOC_CONF"
_EXPANDABLE_VALUE = "expandable_segments:True"
_SHARES = (0.25, 0.5, 0.75, 1.0)
_OF_THE_ADAPTER = ("trained weights", "gradients", "optimizer state", "moving average", "cast weights")
_NO_SAMPLES = {"validate.prompts": ()}
_SMALLEST_RANK = 4
"""Fewer are hardly worth an adapter."""


@dataclass(frozen=True)
class Change:
    """Settings to try, and what they cost."""

    settings: Mapping[str, Any]
    expandable: bool = False
    changes_the_result: bool = False
    is_other_form: bool = False
    """Whether the step runs other operators, so that it needs a trace of its own."""

    @property
    def keeps_samples(self) -> bool:
        return not any(key in self.settings for key in _NO_SAMPLES)

    def applied(self, experiment: Experiment) -> Experiment:
        data = experiment.to_mapping()
        for key, value in self.settings.items():
            section, name = key.split(".")
            if name == "kind" and section == "method":
                data[section] = {"kind": value}
            else:
                data[section][name] = value
        return Experiment.from_mapping(data)

    def words(self) -> dict[str, str]:
        said = {key: _text(value) for key, value in self.settings.items()}
        return {**said, **({EXPANDABLE: _EXPANDABLE_VALUE} if self.expandable else {})}


def same_result(found: Footprint) -> Iterator[Change]:
    """Ways to the same result by computing: caches, no samples, smaller passes, blocks computed again, segments."""
    experiment = found.experiment
    splits = [dict[str, Any]()]
    batch, accumulation = experiment.train.batch_size, experiment.train.gradient_accumulation
    while batch % 2 == 0:
        batch, accumulation = batch // 2, accumulation * 2
        splits.append({"train.batch_size": batch, "train.gradient_accumulation": accumulation})
    share = experiment.levers.gradient_checkpointing
    shares = [dict[str, Any](), *({"levers.gradient_checkpointing": s} for s in _SHARES if s > share)]
    beside = _beside(found)
    for split, more, expandable in product(splits, shares, (False, True)):
        settings = {**beside, **split, **more}
        if settings or expandable:
            yield Change(settings, expandable=expandable)


def over_the_bus(found: Footprint, saving: Mapping[str, Any]) -> Iterator[Change]:
    """Ways to the same result by moving, on top of all that saves memory otherwise; what moves least first.

    Samples are given up last.
    """
    with_samples = {key: value for key, value in saving.items() if key not in _NO_SAMPLES}
    yield from _moving(found, with_samples)
    if with_samples != saving:
        yield from _moving(found, saving)


def _moving(found: Footprint, saving: Mapping[str, Any]) -> Iterator[Change]:
    experiment, levers = found.experiment, found.experiment.levers
    base = {**saving}
    if experiment.train.ema is not None and not levers.ema_on_host:
        base["levers.ema_on_host"] = True
        yield Change(base)
    if not levers.activation_offload:
        yield Change({**base, "levers.activation_offload": True}, is_other_form=True)
    if isinstance(experiment.method, Adapter):
        num_blocks = sum(found.subject.geometry.stacks)
        numbers = [round(num_blocks * share) for share in _SHARES]
        for number in (n for n in numbers if n > levers.swapped_blocks):
            yield Change({**base, "levers.swapped_blocks": number})
    elif not levers.optimizer_on_host:
        yield Change({**base, "levers.optimizer_on_host": True}, is_other_form=True)


def other_result(found: Footprint, lacking_bytes: int) -> Iterator[Change]:
    """What makes another model, the mildest first. An adapter's own weights save no more than it has."""
    experiment, size = found.experiment, found.size
    parts = found.worst.memory.device_bytes_by_part
    is_large = sum(parts.get(part, 0) for part in _OF_THE_ADAPTER) > lacking_bytes
    is_full = experiment.method.kind == "full"
    if experiment.train.ema is not None:
        yield Change({"train.ema": None}, changes_the_result=True)
    if experiment.quantize.text_encoders == "none" and "text encoders" in _parts_anywhere(found):
        yield Change({"quantize.text_encoders": "int8"}, changes_the_result=True)
    if experiment.optimizer.kind == "adamw" and experiment.optimizer.compensation == "none" and (is_full or is_large):
        yield Change({"optimizer.kind": "adamw8bit"}, changes_the_result=True, is_other_form=True)
    yield from _of_all_weights(found) if is_full else _of_the_base(experiment)
    if isinstance(experiment.method, Lora):
        rank = experiment.method.rank
        while is_large and rank > _SMALLEST_RANK:
            rank //= 2
            yield Change({"method.rank": rank}, changes_the_result=True)
    side_px = min(size.height_px, size.width_px)
    for share in (0.75, 0.5):
        smaller_px = int(side_px * share) // 64 * 64
        if smaller_px:
            yield Change({"data.resolution": smaller_px}, changes_the_result=True)
    if experiment.train.precision == "fp32":
        yield Change({"train.precision": "bf16"}, changes_the_result=True)


def _beside(found: Footprint) -> dict[str, Any]:
    """What stands around the step: caches; samples are given up only where they are what needs the most."""
    experiment = found.experiment
    caches = {
        f"levers.{name}": True for name in ("cache_latents", "cache_text") if not getattr(experiment.levers, name)
    }
    samples_are_worst = found.worst.name == "validation" and experiment.validation.prompts
    return {**caches, **(_NO_SAMPLES if samples_are_worst else {})}


def _parts_anywhere(found: Footprint) -> set[str]:
    return {part for phase in found.phases for part in phase.memory.device_bytes_by_part}


def _of_all_weights(found: Footprint) -> Iterator[Change]:
    experiment, num_blocks = found.experiment, sum(found.subject.geometry.stacks)
    fused: dict[str, Any] = {
        "levers.fused_backward": True,
        "train.max_grad_norm": None,
        "train.gradient_accumulation": 1,
    }
    in_bf16 = {"train.weights": "bf16", "optimizer.kind": "adamw", "optimizer.compensation": "kahan"}
    lora = {"method.kind": "lora", "train.weights": "fp32", "optimizer.compensation": "none"}
    if not experiment.levers.fused_backward:
        yield Change(fused, changes_the_result=True, is_other_form=True)
    if experiment.train.weights == "fp32" and experiment.train.precision == "bf16":
        yield Change(in_bf16, changes_the_result=True)
    yield Change(lora, changes_the_result=True)
    on_host = {"levers.gradient_checkpointing": 1.0, "levers.swapped_blocks": num_blocks}
    yield Change({**lora, **on_host}, changes_the_result=True)


def _of_the_base(experiment: Experiment) -> Iterator[Change]:
    if experiment.quantize.denoiser == "none":
        for numbers in ("int8", "nf4"):
            yield Change({"quantize.denoiser": numbers}, changes_the_result=True, is_other_form=True)
    elif experiment.quantize.denoiser != "nf4":
        yield Change({"quantize.denoiser": "nf4"}, changes_the_result=True, is_other_form=True)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
