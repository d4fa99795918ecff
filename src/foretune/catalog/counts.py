"""Counts to check against: FLOPs of one sample, and published numbers of LoRA parameters."""

from collections.abc import Callable, Container
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from foretune.catalog.models import components
from foretune.catalog.rows import DATA_DIR, Row, doubles, raise_all, read_json, validated

Text = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(gt=0)]
Tflop = Annotated[float, Field(gt=0, le=1_000_000)]


class Count(Row):
    """A count that belongs to a component."""

    component: Text


class FlopCount(Count):
    """Operations of one sample in 10**12, two for each multiply-add; matmul, convolution and attention."""

    width_px: Size
    height_px: Size
    num_frames: Size
    num_text_tokens: Annotated[int, Field(ge=0)]
    forward_tflop: Tflop
    forward_backward_tflop: Tflop | None
    """Full fine-tuning without recomputation; None where it was not counted."""


class LoraCount(Count):
    """Trainable LoRA parameters that somebody published."""

    rank: Size
    targets: Literal["attn_qkvo", "all_linear"]
    num_params: Size
    source: Text


CountT = TypeVar("CountT", bound=Count)


def _read(
    path: Path, row_type: type[CountT], known: Container[str], identify: Callable[[CountT], object]
) -> tuple[CountT, ...]:
    rows, problems = validated(row_type, read_json(path, "rows"), label="component")
    unknown = [f"component: no component is named {r.component!r}" for r in rows if r.component not in known]
    raise_all(path, [*problems, *unknown, *doubles(rows, identify)])
    return tuple(rows)


def read_flop_counts(path: Path, known: Container[str]) -> tuple[FlopCount, ...]:
    """Every row of a file whose components must be among the known; raises `CatalogError`."""
    return _read(
        path,
        FlopCount,
        known,
        lambda row: (row.component, row.width_px, row.height_px, row.num_frames, row.num_text_tokens),
    )


def read_lora_counts(path: Path, known: Container[str]) -> tuple[LoraCount, ...]:
    """Every row of a file whose components must be among the known; raises `CatalogError`."""
    return _read(path, LoraCount, known, lambda row: (row.component, row.rank, row.targets))


@cache
def flop_counts() -> tuple[FlopCount, ...]:
    """FLOPs of one sample for denoisers at the sizes that were counted."""
    return read_flop_counts(DATA_DIR / "flops.json", components())


@cache
def lora_counts() -> tuple[LoraCount, ...]:
    """Published numbers of LoRA parameters."""
    return read_lora_counts(DATA_DIR / "lora_counts.json", components())
