"""What a card lacks is said about that card, with what to use instead."""

from typing import Any

import pytest

from foretune.catalog import device, devices
from foretune.catalog.devices import generic_card
from foretune.choices.experiment import Experiment
from foretune.choices.objections.hardware import hardware_objections

OLD = ("t4", "v100-sxm2-16gb", "v100-sxm2-32gb", "rtx-2080-ti", "quadro-rtx-8000")


def texts(name: str, **sections: Any) -> list[str]:
    train = {"steps": 1, "precision": "bf16", **sections.pop("train", {})}
    form = {"model": "m", "method": {"kind": "lora"}, "data": {"kind": "shapes"}, "train": train, **sections}
    return [found.text for found in hardware_objections(Experiment.model_validate(form), device(name))]


def test_bf16_is_warned_about_on_just_the_cards_without_it() -> None:
    assert {name for name in devices() if texts(name)} == set(OLD)


@pytest.mark.parametrize("name", OLD)
def test_the_alternatives_are_named(name: str) -> None:
    (text,) = texts(name)
    assert name in text
    assert "train.precision=fp16" in text
    assert "train.precision=fp32" in text
    assert not texts(name, train={"precision": "fp16"})
    assert not texts(name, train={"precision": "fp32"})


def test_the_cost_is_that_of_the_card() -> None:
    (text,) = texts("t4")
    assert "8.1 instead of 65 TFLOPS" in text


def test_bf16_weights_need_another_type_as_well() -> None:
    (text,) = texts("t4", train={"weight_dtype": "bf16"}, method={"kind": "full"})
    assert "train.precision=fp16 with train.weight_dtype=fp32" in text


@pytest.mark.parametrize("kind", ["float8-dynamic", "float8-training"])
def test_float8_products_need_ada_or_newer(kind: str) -> None:
    (text,) = texts("rtx-3090", quantize={"denoiser": kind})
    assert "needs Ada, Hopper or newer" in text
    assert "quantize.denoiser=float8," in text
    for name in ("rtx-4090", "h100-sxm", "rtx-5080", "l4"):
        assert not texts(name, quantize={"denoiser": kind})


def test_float8_as_storage_works_anywhere() -> None:
    assert not texts("rtx-3090", quantize={"denoiser": "float8"})


def test_nothing_is_said_about_a_card_that_is_not_known() -> None:
    card = generic_card("16gib", memory_gb=16, reported_memory_mib=None)
    form = {"model": "m", "method": {"kind": "lora"}, "data": {"kind": "shapes"}, "train": {"steps": 1}}
    assert not list(hardware_objections(Experiment.model_validate(form), card))
