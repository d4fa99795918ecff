"""The axes of the capability matrix, read off the schema of an experiment: a new choice is on them by itself."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.method import METHODS
from foretune.choices.objections import DeviceType, Objection
from foretune.choices.optimizers import FOUND_LR_FACTOR, OPTIMIZER_SPECS, OptimizerKind
from foretune.choices.quantize import DenoiserNumbers, EncoderNumbers
from foretune.choices.training import AttentionBackend, Compensation, Levers, Precision

Overrides = Mapping[str, Any]
"""Dotted keys of an experiment with their values."""

Axis = dict[str, Overrides]
"""Values by name; the first is the usual one."""

_FREE: dict[str, Overrides] = {
    # What goes with a value and is no choice of its own.
    "fused_backward": {"train.max_grad_norm": None},
    "ema_offload": {"train.ema": {}},
    **{spec.name: {"optimizer.lr": FOUND_LR_FACTOR} for spec in OPTIMIZER_SPECS.values() if spec.finds_lr},
}


_BESIDE_THE_STEP = frozenset({"vae_tiling"})
"""Levers of the autoencoder alone: no other choice bears on whether they work, so each is tested once by itself."""


@cache
def axes() -> dict[str, Axis]:
    """All that an experiment can choose and that bears on whether it runs, besides its model."""
    return {
        "method": {kind: {"method.kind": kind} for kind in METHODS},
        "precision": dict(_precisions()),
        "quantized denoiser": _literal(DenoiserNumbers, "quantize.denoiser"),
        "quantized text encoders": _literal(EncoderNumbers, "quantize.text_encoders"),
        "optimizer": _literal(OptimizerKind, "optimizer.kind"),
        "checkpointing": {
            "none": {},
            "all blocks": {"levers.gradient_checkpointing": 1.0},
            "half of the blocks": {"levers.gradient_checkpointing": 0.5},
            "segments of two": {"levers.gradient_checkpointing": 1.0, "levers.checkpoint_segment": 2},
            "every other block": {"levers.gradient_checkpointing": 1.0, "levers.checkpoint_stride": 2},
            "feed-forward parts": {
                "levers.gradient_checkpointing": 1.0,
                "levers.checkpoint_parts": "feed_forward",
            },
        },
        "attention": _literal(AttentionBackend, "levers.attention"),
        "lever": dict(_levers()),
    }


def _literal(values: Any, key: str) -> Axis:
    first, *others = get_args(values)
    return {first: {}, **{value: {key: value, **_FREE.get(value, {})} for value in others}}


def _precisions() -> Iterator[tuple[str, Overrides]]:
    for precision in get_args(Precision):
        yield precision, {"train.precision": precision}
    for compensation in get_args(Compensation):
        name = "bf16 weights" if compensation == "none" else f"bf16 weights, {compensation}"
        weights = {"train.precision": "bf16", "train.weight_dtype": "bf16", "optimizer.compensation": compensation}
        yield name, weights


def _levers() -> Iterator[tuple[str, Overrides]]:
    """Everything that can be switched, one at a time."""
    yield "none", {}
    for name, field in Levers.model_fields.items():
        key = f"levers.{name}"
        if field.annotation is bool and name not in _BESIDE_THE_STEP:
            yield name, {key: not field.get_default(), **_FREE.get(name, {})}
    yield "offload of attention", {"levers.activation_offload": True, "levers.activation_offload_parts": "attention"}
    yield "swap of one block", {"levers.block_swap": 1}
    yield "compile", {"levers.compile": "regional"}
    yield "accumulation", {"train.gradient_accumulation": 2}
    yield "moving average", {"train.ema": {}}


Cell = tuple[str, ...]
"""One value of each axis, in the order of `axes`."""


def experiment_of(cell: Cell, base: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment in which this cell is chosen."""
    mapping: dict[str, Any] = {name: dict(v) if isinstance(v, Mapping) else v for name, v in base.items()}
    for values, name in zip(axes().values(), cell, strict=True):
        for key, value in values[name].items():
            section, _, field = key.partition(".")
            mapping.setdefault(section, {})[field] = value
    return mapping


_ANY: dict[str, Any] = {"model": "owner/any", "data": {"kind": "shapes"}, "train": {"steps": 1}}


def refusals(
    cell: Cell, family: str, device_type: DeviceType, sections: Mapping[str, Any] | None = None
) -> tuple[Objection, ...]:
    """Why this cell is not supported on models of this family and such devices; empty where it is.

    `sections`: what else the experiment has, such as `parallel`.
    """
    experiment = Experiment.model_validate(experiment_of(cell, {**_ANY, **(sections or {})}))
    found = objections(experiment, family, distilled=False, device_type=device_type)
    return tuple(objection for objection in found if objection.severity == "refused")
