"""The page on methods: its counts are those of the models, its kinds are all there are, its settings are understood."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from foretune.choices.method import METHODS
from foretune.config.overrides import apply_overrides
from foretune.config.reading import understand
from foretune.config.starting import starting_text
from foretune.config.yaml_files import parse
from foretune.models.locating import family_from_catalogue
from foretune.step.building import attach_method
from tests.step.small_steps import small_experiment

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \|[^|]+\| ([\d,]+) \| ([\d.]+) (MB|GB) \|", PAGE, re.MULTILINE)


def test_every_method_has_its_row() -> None:
    assert [row[0] for row in ROWS] == list(METHODS)


@pytest.mark.parametrize(("kind", "weights", "size", "unit"), ROWS, ids=[row[0] for row in ROWS])
def test_counts_are_those_of_the_model(kind: str, weights: str, size: str, unit: str) -> None:
    family = family_from_catalogue("flux.1-dev")
    method = attach_method(small_experiment(kind), family, family.denoiser_on_meta(torch.bfloat16))
    num_weights = sum(parameter.numel() for parameter in method.trained().values())
    assert f"{num_weights:,}" == weights
    assert f"{2 * num_weights / {'MB': 1e6, 'GB': 1e9}[unit]:.1f}" == size


def test_the_larger_lokr_is_counted_too() -> None:
    family = family_from_catalogue("flux.1-dev")
    choice = {"kind": "lokr", "full_matrix": True, "factor": 16}
    method = attach_method(small_experiment(choice), family, family.denoiser_on_meta(torch.bfloat16))
    assert f"{sum(parameter.numel() for parameter in method.trained().values()):,}" in PAGE


def test_settings_that_are_shown_are_understood() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 2
    for line in lines:
        program, verb, file, *overrides = shlex.split(line)
        assert (program, verb) == ("foretune", "train")
        text = starting_text(file, "flux.1-dev", "lora", None, family="flux")
        asked = understand(apply_overrides(parse(text), overrides), source=file)
        assert asked.experiment.method.kind == "lora"
