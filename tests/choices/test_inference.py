"""How a model samples: what is refused before anything is loaded."""

from typing import Any

import pytest

from foretune.choices.inference import InferenceForm, check_form, form_of
from foretune.core.errors import Refused, UnknownName, UserError


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"precision": "bf17"}, "There is no precision named 'bf17'. Did you mean 'bf16'"),
        ({"quantize": "float8-training"}, "There is no quantize named"),
        ({"compile": "whole"}, "There is no compile named"),
        ({"batch_size": 0}, "batch: 0 is not a number of images. Write batch=2"),
        ({"devices": "two"}, "devices: 'two' is not a number of devices. Write devices=2"),
        ({"devices": True}, "is not a number of devices"),
    ],
)
def test_values_that_do_not_exist(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((UnknownName, UserError), match=said):
        check_form(InferenceForm(**wrong))


def test_only_an_adapter_file_cannot_be_merged_into_quantised_weights() -> None:
    """A run is merged before its weights are quantised."""
    form = InferenceForm(merge=True, quantize="int8")
    check_form(form)
    check_form(InferenceForm(merge=True), has_adapter_file=True)
    with pytest.raises(Refused, match=r"into quantised weights of the variant x\. Leave out one of merge and quantize"):
        check_form(form, of=" of the variant x", has_adapter_file=True)


def test_the_fields_that_all_commands_share() -> None:
    assert form_of(InferenceForm(devices=2)) == {
        "precision": None,
        "quantize": None,
        "compile": "off",
        "merge": False,
        "batch_size": None,
        "devices": 2,
    }
