"""Levers that do not go together are refused, and what is named as nearest does go."""

from typing import Any, get_args

import pytest

from foretune.catalog import TRAINABLE, family_facts
from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections import DeviceType
from foretune.choices.training import AttentionBackend
from foretune.models import FAMILIES
from foretune.models.family import Family

AGAIN = {"gradient_checkpointing": 1}
SWAPPED = {**AGAIN, "block_swap": 2}


def refused(
    family: str = "flux",
    device_type: DeviceType | None = None,
    method: str | dict[str, Any] = "lora",
    **sections: Any,
) -> list[str]:
    kind = {"kind": method} if isinstance(method, str) else method
    mapping = {"model": "owner/any", "data": {"kind": "shapes"}, "train": {"steps": 1}, "method": kind}
    experiment = Experiment.model_validate({**mapping, **sections})
    found = objections(experiment, family, distilled=None, only_planned=True, device_type=device_type)
    return [objection.text for objection in found if objection.severity == "refused"]


def warned(device_type: DeviceType | None, levers: dict[str, Any]) -> list[str]:
    mapping = {"model": "owner/any", "data": {"kind": "shapes"}, "train": {"steps": 1}, "method": {"kind": "lora"}}
    experiment = Experiment.model_validate({**mapping, "levers": levers})
    found = objections(experiment, "flux", distilled=None, device_type=device_type)
    return [objection.text for objection in found if objection.severity == "warning"]


@pytest.mark.parametrize(
    ("sections", "key", "nearest"),
    [
        ({"levers": {"checkpoint_segment": 2}}, "checkpoint_segment", "levers.gradient_checkpointing=1"),
        ({"levers": {"checkpoint_stride": 2}}, "checkpoint_stride", "levers.gradient_checkpointing=1"),
        ({"levers": {"checkpoint_parts": "feed_forward"}}, "checkpoint_parts", "levers.gradient_checkpointing=1"),
        (
            {"levers": {"gradient_checkpointing": 0.5, "checkpoint_stride": 2}},
            "checkpoint_stride",
            "levers.gradient_checkpointing=1, or levers.checkpoint_stride=null",
        ),
        (
            {"levers": {**AGAIN, "checkpoint_segment": 3, "checkpoint_stride": 2}},
            "checkpoint_stride",
            "levers.checkpoint_stride=3",
        ),
        (
            {"levers": {**AGAIN, "checkpoint_segment": 2, "checkpoint_parts": "feed_forward"}},
            "checkpoint_segment",
            "levers.checkpoint_segment=1, or levers.checkpoint_parts=blocks",
        ),
        (
            {"levers": {**AGAIN, "checkpoint_segment": 2}, "family": "ddpm"},
            "checkpoint_segment",
            "levers.checkpoint_segment=1",
        ),
        (
            {"levers": {**AGAIN, "checkpoint_parts": "feed_forward"}, "family": "ddpm"},
            "checkpoint_parts",
            "levers.checkpoint_parts=blocks",
        ),
        (
            {"levers": SWAPPED, "method": "full"},
            "block_swap",
            "method.kind=lora, or levers.block_swap=0 with levers.optimizer_offload=true",
        ),
        ({"levers": {"block_swap": 2}}, "block_swap", "levers.gradient_checkpointing=1"),
        (
            {"levers": {**SWAPPED, "checkpoint_stride": 2}},
            "block_swap",
            "levers.checkpoint_stride=null",
        ),
        (
            {"levers": {**SWAPPED, "gradient_checkpointing": 0.5, "checkpoint_parts": "feed_forward"}},
            "block_swap",
            "levers.gradient_checkpointing=1 levers.checkpoint_parts=blocks",
        ),
        (
            {"levers": {"activation_offload_parts": "attention"}},
            "activation_offload_parts",
            "levers.activation_offload=true",
        ),
        (
            {"levers": {**SWAPPED, "activation_offload": True, "activation_offload_parts": "attention"}},
            "activation_offload_parts",
            "levers.activation_offload_parts=blocks, or levers.block_swap=0",
        ),
        (
            {"levers": {**AGAIN, "compile": "regional", "checkpoint_parts": "feed_forward"}},
            "compile",
            "levers.checkpoint_parts=blocks, or levers.compile=off",
        ),
        (
            {"levers": {"compile": "regional", "activation_offload": True, "activation_offload_parts": "attention"}},
            "compile",
            "levers.activation_offload_parts=blocks, or levers.compile=off",
        ),
        (
            {"levers": {"compile": "regional"}, "method": "dora"},
            "compile",
            "method.kind=lora, or levers.compile=off",
        ),
        ({"levers": {"channels_last": True}}, "channels_last", "levers.channels_last=false"),
    ],
)
def test_what_does_not_go_together(sections: dict[str, Any], key: str, nearest: str) -> None:
    (text,) = refused(**sections)
    assert text.startswith(f"levers.{key}: ")
    assert text.endswith(f"Nearest: {nearest}")


@pytest.mark.parametrize(
    "levers",
    [
        {},
        {**AGAIN, "checkpoint_segment": 4},
        {**AGAIN, "checkpoint_stride": 3, "checkpoint_segment": 2},
        {"gradient_checkpointing": 0.5, "checkpoint_segment": 2},
        {"gradient_checkpointing": 0.5, "checkpoint_parts": "feed_forward"},
        {**AGAIN, "checkpoint_stride": 3, "checkpoint_parts": "feed_forward"},
        {**SWAPPED, "checkpoint_segment": 2, "checkpoint_stride": 2, "activation_offload": True},
        {**SWAPPED, "compile": "regional", "activation_offload": True, "attention": "flash"},
    ],
)
def test_what_goes_together(levers: dict[str, Any]) -> None:
    assert refused(levers=levers) == []


@pytest.mark.parametrize(
    ("device_type", "kernels"),
    [
        (None, {"auto", "math", "efficient", "flash", "cudnn"}),
        ("cuda", {"auto", "math", "efficient", "flash", "cudnn"}),
        ("rocm", {"auto", "math", "efficient", "flash"}),
        ("cpu", {"auto", "math", "flash"}),
        ("mps", {"auto", "math"}),
    ],
)
def test_kernels_of_attention_by_device(device_type: DeviceType | None, kernels: set[str]) -> None:
    for kernel in get_args(AttentionBackend):
        found = refused(device_type=device_type, levers={"attention": kernel})
        if kernel in kernels:
            assert found == []
        else:
            (text,) = found
            assert text.startswith(f"levers.attention: torch has no {kernel} kernel for {device_type}; it has math")
            assert text.rpartition("levers.attention=")[2] in kernels


@pytest.mark.parametrize("device_type", ["cpu", "mps"])
def test_going_to_the_host_from_the_host_saves_nothing(device_type: DeviceType) -> None:
    levers = {**SWAPPED, "activation_offload": True}
    assert [text.partition(":")[0] for text in warned(device_type, levers)] == [
        "levers.activation_offload",
        "levers.block_swap",
    ]
    assert warned("cuda", levers) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_unets_are_the_families_without_stacks_of_blocks(name: str) -> None:
    has_stacks = bool(FAMILIES[name].stacks) or FAMILIES[name].block_kinds is not Family.block_kinds
    assert has_stacks == (not family_facts(name).is_unet)


@pytest.mark.parametrize("family", TRAINABLE)
def test_channels_last_is_for_unets(family: str) -> None:
    assert (refused(family, levers={"channels_last": True}) == []) == family_facts(family).is_unet


@pytest.mark.parametrize("levers", [AGAIN, {"gradient_checkpointing": 0.5}, {**AGAIN, "checkpoint_segment": 2}])
def test_dropout_with_checkpointing_is_refused_where_torch_restores_no_random_state(levers: dict[str, Any]) -> None:
    dropping = {"kind": "lora", "dropout": 0.1}
    (text,) = refused(device_type="mps", method=dropping, levers=levers)
    assert text.startswith("method.dropout:")
    assert text.endswith("Nearest: method.dropout=0, or levers.gradient_checkpointing=0")
    assert refused(device_type="mps", levers=levers) == []
    assert refused(device_type="mps", method=dropping) == []
    assert refused(device_type="cuda", method=dropping, levers=levers) == []
