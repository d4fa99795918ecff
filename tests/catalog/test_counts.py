"""Counts to check against: they belong to catalogue rows, and a planted mistake is seen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.catalog import CatalogError, component, components, flop_counts, lora_counts
from foretune.catalog.counts import read_flop_counts, read_lora_counts
from foretune.catalog.rows import DATA_DIR

Rows = list[dict[str, Any]]


def _mutated(tmp_path: Path, file: str, mutate: Callable[[Rows], None]) -> Path:
    document = json.loads((DATA_DIR / file).read_text())
    mutate(document["rows"])
    path = tmp_path / file
    path.write_text(json.dumps(document))
    return path


def _change(**fields: Any) -> Callable[[Rows], None]:
    return lambda rows: rows[0].update(fields)


def _double(rows: Rows) -> None:
    rows.append(rows[0])


def test_published_lora_counts_follow_from_the_sizes_per_rank() -> None:
    assert len(lora_counts()) == 4
    for row in lora_counts():
        sizes = component(row.component).lora_params_per_rank
        assert sizes is not None
        assert row.num_params == row.rank * getattr(sizes, row.targets), row.component


def test_flops_are_there_for_the_first_families() -> None:
    assert len(flop_counts()) == 28
    counted = {row.component for row in flop_counts()}
    assert {"flux.1-dev", "flux.1-schnell", "sd3-medium", "sd3.5-medium", "ddpm-cifar10"} <= counted


def test_backward_costs_about_two_forwards() -> None:
    for row in flop_counts():
        if row.forward_backward_tflop is not None:
            assert 2.9 < row.forward_backward_tflop / row.forward_tflop <= 3.0, row


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        (_change(component="nothing"), "no component is named 'nothing'"),
        (_change(forward_tflop=-1), "forward_tflop"),
        (_change(width_px=0), "width_px"),
        (_double, "appears twice"),
    ],
)
def test_a_planted_mistake_in_flops_is_seen(tmp_path: Path, mutate: Callable[[Rows], None], complaint: str) -> None:
    with pytest.raises(CatalogError, match=complaint):
        read_flop_counts(_mutated(tmp_path, "flops.json", mutate), components())


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        (_change(component="nothing"), "no component is named 'nothing'"),
        (_change(source=""), "source"),
        (_change(targets="everything"), "targets"),
        (_double, "appears twice"),
    ],
)
def test_a_planted_mistake_in_lora_counts_is_seen(
    tmp_path: Path, mutate: Callable[[Rows], None], complaint: str
) -> None:
    with pytest.raises(CatalogError, match=complaint):
        read_lora_counts(_mutated(tmp_path, "lora_counts.json", mutate), components())
