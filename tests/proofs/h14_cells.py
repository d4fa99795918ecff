"""More trainings whose memory is forecast and then measured: cells of the capability matrix on small models."""

import random
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.matrix import Cell, axes, experiment_of, refusals
from foretune.models.family import Family
from foretune.trace.tracing import StepSizes
from tests.matrix.covering import pairs_of
from tests.proofs.h14_cases import DEPTHS, Case, transformer

_SEED = 1416
_NUM_DRAWN = 60
"""Candidates for each row of the table."""
# Compiled code is not modelled, encoders are not part of a step.
_LEFT_OUT = {"compile", "cache_latents", "cache_text"}
_ONE_VALUE = {"quantized text encoders": ("none",)}
_SIZES: dict[str, tuple[Any, ...]] = {
    "width": ("narrow", "wide"),
    "batch_size": (1, 2, 5),
    "size": ("small", "middle", "large"),
    "num_threads": (1, 2),
}


@dataclass(frozen=True)
class CellCase:
    """One training."""

    family: str
    cell: Cell
    width: str
    batch_size: int
    size: str
    num_threads: int

    @cached_property
    def _sized(self) -> Case:
        return Case(
            self.family, "full", "fp32", self.width, self.batch_size, self.size, 0.0, 1, False, self.num_threads
        )

    def model(self) -> Family:
        if self.family == "ddpm":
            return self._sized.model()
        # Multiples of 16, which products in 8 bits need.
        num_heads, head_dim = (10, 48) if self.width == "wide" else (6, 64)
        return transformer(self.family, num_heads, head_dim, depths=DEPTHS[self.family])

    def sizes(self) -> StepSizes:
        return self._sized.sizes()

    def experiment(self) -> Experiment:
        base: dict[str, Any] = {
            "model": "small",
            "data": {"kind": "shapes"},
            "train": {"steps": 2},
            "parallel": {"device": "cpu"},
        }
        mapping = experiment_of(self.cell, base)
        if mapping["method"]["kind"] == "oft":
            mapping["method"]["block_size"] = 8
        return Experiment.model_validate(mapping)

    @property
    def accumulation(self) -> int:
        return self.experiment().train.gradient_accumulation

    @property
    def precision(self) -> str:
        return self.experiment().train.precision

    def tiny(self) -> "CellCase":
        """A smaller training of the same kind: what a process loads and sets up for any of them, it has then."""
        return replace(self, width="narrow", batch_size=1, size="tiny")


def case_of(mapping: dict[str, Any]) -> Case | CellCase:
    """A case as it came through JSON."""
    return CellCase(**{**mapping, "cell": tuple(mapping["cell"])}) if "cell" in mapping else Case(**mapping)


def cell_cases(num_cases: int) -> list[CellCase]:
    """The first rows of a fixed table; each row adds as many new pairs of values as any of those drawn for it."""
    draw = random.Random(_SEED)
    chosen: list[CellCase] = []
    met: set[Any] = set()
    while len(chosen) < num_cases:
        drawn = [_drawn(draw) for _ in range(_NUM_DRAWN)]
        fresh = [case for case in drawn if case not in chosen and _is_possible(case)]
        best = max(fresh, key=lambda case: len(_pairs(case) - met))
        chosen.append(best)
        met |= _pairs(best)
    return chosen


def _drawn(draw: random.Random) -> CellCase:
    family = draw.choice(("ddpm", "sd3", "flux"))
    cell: Cell
    while True:
        cell = tuple(draw.choice(values) for values in _values())
        if _is_supported(cell, family):
            break
    return CellCase(family, cell, **{name: draw.choice(values) for name, values in _SIZES.items()})


@lru_cache(maxsize=1)
def _values() -> tuple[tuple[str, ...], ...]:
    return tuple(
        _ONE_VALUE.get(name, tuple(value for value in values if value not in _LEFT_OUT))
        for name, values in axes().items()
    )


@cache
def _is_supported(cell: Cell, family: str) -> bool:
    return not refusals(cell, family, "cpu")


def _is_possible(case: CellCase) -> bool:
    """oneDNN has no fp16 kernel for the weights' gradient of a convolution: a step takes minutes instead."""
    return not (case.family == "ddpm" and case.cell[0] == "full" and case.precision == "fp16")


def _pairs(case: CellCase) -> set[Any]:
    sizes = tuple(str(getattr(case, name)) for name in _SIZES)
    return set(pairs_of((case.family, *case.cell, *sizes)))
