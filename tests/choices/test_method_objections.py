"""What a method does not go with is refused by name, with the nearest that works."""

from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.choices.method import METHODS
from foretune.choices.objections.methods import method_objections


def objections(method: dict[str, Any], **sections: Any) -> list[tuple[str, str]]:
    experiment = Experiment.model_validate(
        {"model": "flux.1-dev", "method": method, "data": {"kind": "shapes"}, "train": {"steps": 1}, **sections}
    )
    return [(found.severity, found.text) for found in method_objections(experiment)]


@pytest.mark.parametrize("kind", METHODS)
def test_nothing_speaks_against_a_method_as_it_is(kind: str) -> None:
    assert objections({"kind": kind}) == []
    assert objections({"kind": kind}, quantize={"denoiser": "nf4"}) == []


@pytest.mark.parametrize("kind", [kind for kind in METHODS if kind != "full"])
def test_dropout_of_inputs_is_for_those_that_have_it(kind: str) -> None:
    found = objections({"kind": kind, "dropout": 0.1})
    if kind in ("lora", "dora", "rslora"):
        assert found == []
        return
    ((severity, text),) = found
    assert severity == "refused"
    assert text.startswith(f"method.dropout: {kind} adapters have no dropout")
    assert text.endswith("Nearest: method.dropout=0, or method.kind=lora")


def test_a_factor_of_nothing() -> None:
    ((severity, text),) = objections({"kind": "lokr", "factor": 0})
    assert severity == "refused"
    assert text.startswith("method.factor: ")
    assert "Nearest: method.factor=-1" in text


def test_a_training_adapter_is_not_planned() -> None:
    ((severity, text),) = objections({"kind": "lora", "training_adapter": "./helper"})
    assert severity == "warning"
    assert "not in the forecast of memory" in text
