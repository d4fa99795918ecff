"""What speaks against a quantised base."""

from typing import Any

import pytest

from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections import DeviceType


def found(
    quantize: dict[str, Any], *, family: str = "flux", device: DeviceType | None = None, **sections: Any
) -> dict[str, list[str]]:
    experiment = Experiment.model_validate(
        {"model": "flux.1-dev", "data": {"kind": "shapes"}, "train": {"steps": 1}, "quantize": quantize} | sections
    )
    texts: dict[str, list[str]] = {"refused": [], "warning": []}
    for objection in objections(experiment, family, distilled=None, device_type=device):
        texts[objection.severity].append(objection.text)
    return texts


@pytest.mark.parametrize("kind", ["int8", "float8", "float8-dynamic", "nf4", "int8-bnb"])
def test_weights_in_fewer_bits_cannot_be_trained(kind) -> None:
    (text,) = found({"denoiser": kind}, method={"kind": "full"})["refused"]
    assert "Nearest: method.kind=lora" in text
    assert found({"denoiser": kind})["refused"] == []


def test_products_in_fewer_bits_go_with_every_method() -> None:
    assert found({"denoiser": "float8-training"}, method={"kind": "full"}) == {"refused": [], "warning": []}


@pytest.mark.parametrize(
    ("quantize", "device", "nearest"),
    [
        ({"denoiser": "float8"}, "mps", "quantize.denoiser=int8"),
        ({"text_encoders": "float8"}, "mps", "quantize.text_encoders=int8"),
        ({"denoiser": "nf4"}, "mps", "quantize.denoiser=int8"),
        ({"text_encoders": "int8-bnb"}, "mps", "quantize.text_encoders=int8"),
        ({"denoiser": "float8-dynamic"}, "rocm", "quantize.denoiser=float8"),
        ({"denoiser": "float8-training"}, "rocm", "quantize.denoiser=float8"),
    ],
)
def test_what_cannot_be_is_refused_by_name(quantize, device, nearest) -> None:
    (text,) = found(quantize, device=device)["refused"]
    assert text.endswith(f"Nearest: {nearest}")


@pytest.mark.parametrize("kind", ["int8", "float8", "nf4", "int8-bnb"])
def test_these_go_on_every_gpu(kind) -> None:
    for device in ("cuda", "rocm"):
        assert found({"denoiser": kind, "text_encoders": kind}, device=device)["refused"] == []


@pytest.mark.parametrize(
    ("quantize", "arguments", "words"),
    [
        ({"denoiser": "float8-dynamic"}, {"device": "cpu"}, "made in a wider type"),
        ({"denoiser": "int8-bnb"}, {}, "and on GPUs its outputs, too, so that values above 65504"),
        ({"denoiser": "int8"}, {"family": "ddpm"}, "convolutions"),
        ({"text_encoders": "int8"}, {"family": "ddpm"}, "quantize.text_encoders has no effect"),
        ({"keep": ["norm"]}, {}, "quantize.keep has no effect"),
    ],
)
def test_what_surprises_is_said(quantize, arguments, words) -> None:
    texts = found(quantize, **arguments)
    assert texts["refused"] == []
    assert any(words in text for text in texts["warning"])
