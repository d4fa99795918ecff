"""What an optimizer does not go with is refused, with what to type instead; the instead is accepted."""

from typing import Any

import pytest

from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections import DeviceType, Objection

BF16 = {"precision": "bf16", "weight_dtype": "bf16"}
LORA = {"kind": "lora"}


def found(device_type: DeviceType | None = None, **sections: Any) -> list[Objection]:
    train = {"steps": 1, **sections.pop("train", {})}
    asked = {"model": "m", "method": LORA, "data": {"kind": "shapes"}, "train": train, **sections}
    return list(objections(Experiment.model_validate(asked), "flux", distilled=False, device_type=device_type))


def refusals(device_type: DeviceType | None = None, **sections: Any) -> list[str]:
    return [one.text for one in found(device_type, **sections) if one.severity == "refused"]


def warnings(device_type: DeviceType | None = None, **sections: Any) -> list[str]:
    return [one.text for one in found(device_type, **sections) if one.severity == "warning"]


# What is asked, what is said, and the same experiment as the text proposes it.
REFUSED: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (
        {"optimizer": {"kind": "paged-adamw8bit"}, "device_type": "cpu"},
        "Nearest: optimizer.kind=adamw8bit",
        {"optimizer": {"kind": "adamw8bit"}, "device_type": "cpu"},
    ),
    (
        {"optimizer": {"kind": "paged-adamw8bit"}, "device_type": "rocm"},
        "Nearest: optimizer.kind=adamw8bit",
        {"optimizer": {"kind": "adamw8bit"}, "device_type": "rocm"},
    ),
    (
        {"optimizer": {"kind": "paged-adamw8bit"}, "levers": {"optimizer_offload": True}, "device_type": "cuda"},
        "Nearest: optimizer.kind=adamw8bit",
        {"optimizer": {"kind": "adamw8bit"}, "levers": {"optimizer_offload": True}, "device_type": "cuda"},
    ),
    (
        {"optimizer": {"kind": "lion8bit"}, "device_type": "mps"},
        "or levers.optimizer_offload=true",
        {"optimizer": {"kind": "lion8bit"}, "levers": {"optimizer_offload": True}, "device_type": "mps"},
    ),
    (
        {"train": BF16, "optimizer": {"kind": "adamw8bit", "compensation": "kahan"}},
        "Nearest: optimizer.kind=adamw",
        {"train": BF16, "optimizer": {"kind": "adamw", "compensation": "kahan"}},
    ),
    (
        {"train": BF16, "optimizer": {"compensation": "stochastic"}, "levers": {"optimizer_offload": True}},
        "Nearest: optimizer.compensation=none",
        {"train": BF16, "levers": {"optimizer_offload": True}},
    ),
    ({"optimizer": {"kind": "prodigy"}}, "Nearest: optimizer.lr=1", {"optimizer": {"kind": "prodigy", "lr": 1.0}}),
    (
        {"optimizer": {"kind": "schedule-free", "schedule": "cosine"}},
        "Nearest: optimizer.schedule=constant",
        {"optimizer": {"kind": "schedule-free"}},
    ),
    (
        {"optimizer": {"kind": "schedule-free", "betas": [0, 0.99]}},
        "Nearest: optimizer.betas=[0.9,0.99]",
        {"optimizer": {"kind": "schedule-free", "betas": [0.9, 0.99]}},
    ),
    (
        {"optimizer": {"kind": "schedule-free"}, "train": {"ema": {}}},
        "Nearest: train.ema=null",
        {"optimizer": {"kind": "schedule-free"}},
    ),
    (
        {"optimizer": {"kind": "schedule-free"}, "train": BF16},
        "Nearest: train.weight_dtype=fp32",
        {"optimizer": {"kind": "schedule-free"}, "train": BF16, "levers": {"optimizer_offload": True}},
    ),
    (
        {"optimizer": {"kind": "prodigy", "lr": 1.0}, "train": BF16, "method": {"kind": "full"}},
        "Nearest: train.weight_dtype=fp32",
        {"optimizer": {"kind": "prodigy", "lr": 1.0}, "train": BF16, "method": LORA},
    ),
    ({"train": {"precision": "tf32"}, "device_type": "rocm"}, "Nearest: train.precision=fp32", {"device_type": "rocm"}),
    (
        {"levers": {"fused_backward": True}},
        "Nearest: train.max_grad_norm=null",
        {"levers": {"fused_backward": True}, "train": {"max_grad_norm": None}},
    ),
    (
        {"levers": {"fused_backward": True}, "train": {"max_grad_norm": None, "gradient_accumulation": 2}},
        "Nearest: train.gradient_accumulation=1",
        {"levers": {"fused_backward": True}, "train": {"max_grad_norm": None}},
    ),
    (
        {"levers": {"fused_backward": True}, "train": {"max_grad_norm": None, "precision": "fp16"}},
        "Nearest: train.precision=bf16",
        {"levers": {"fused_backward": True}, "train": {"max_grad_norm": None}},
    ),
    (
        {
            "levers": {"fused_backward": True},
            "train": {"max_grad_norm": None},
            "optimizer": {"kind": "prodigy", "lr": 1.0},
        },
        "Nearest: optimizer.kind=adamw",
        {"levers": {"fused_backward": True}, "train": {"max_grad_norm": None}},
    ),
]


@pytest.mark.parametrize(("asked", "said", "instead"), REFUSED)
def test_refused_with_what_to_type_instead(asked: dict[str, Any], said: str, instead: dict[str, Any]) -> None:
    texts = refusals(**asked)
    assert len(texts) == 1, texts
    assert said in texts[0]
    assert refusals(**instead) == []


def test_weights_in_another_layout_and_an_optimizer_that_undoes_it() -> None:
    asked: dict[str, Any] = {"method": {"kind": "full"}, "levers": {"channels_last": True}}
    texts = refusals(**asked, optimizer={"kind": "adamw8bit"})
    assert any("levers.channels_last=false, or optimizer.kind=adamw" in text for text in texts)
    assert not any("usual layout" in text for text in refusals(**asked))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"optimizer": {"kind": "lion"}}, "Set optimizer.betas=[0.9,0.99]"),
        ({"optimizer": {"kind": "lion", "betas": [0.9, 0.99], "eps": 1e-6}}, "optimizer.eps has no effect"),
        ({"optimizer": {"kind": "adafactor", "betas": [0.9, 0.99]}}, "have no effect"),
        ({"levers": {"ema_offload": True}}, "levers.ema_offload has no effect"),
        ({"train": BF16, "optimizer": {"betas": [0.9, 0.99]}}, "optimizer.compensation=kahan keeps them"),
        ({"train": BF16, "optimizer": {"kind": "adafactor"}}, "levers.optimizer_offload=true keeps them"),
        ({"train": BF16, "optimizer": {"compensation": "kahan"}}, "only ever grows"),
    ],
)
def test_warned_of(asked: dict[str, Any], said: str) -> None:
    texts = warnings(**asked)
    assert len(texts) == 1, texts
    assert said in texts[0]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"train": BF16, "optimizer": {"compensation": "stochastic"}},
        {"train": BF16, "levers": {"optimizer_offload": True}},
        {"optimizer": {"kind": "lion8bit", "betas": [0.9, 0.99]}},
        {"optimizer": {"kind": "adafactor"}},
        {"optimizer": {"kind": "paged-adamw8bit"}, "device_type": "cuda"},
    ],
)
def test_nothing_is_said_of_what_goes_together(asked: dict[str, Any]) -> None:
    assert found(**asked) == []
