"""Trainings whose memory on a device is planned and then measured: cells of the capability matrix on tiny models."""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from foretune.catalog import FAMILY_FACTS, TRAINABLE
from foretune.choices.matrix import Cell, axes, experiment_of, refusals
from tests.matrix.covering import pairs_of
from tests.training.short_runs import of_model

_SEED = 33
_NUM_DRAWN = 60
"""Candidates for each row of the table."""
_EVERY_FULL = 4
"""Each so many rows one trains all weights: adapters are most of the methods."""
# Compiled code is not modelled. Encoders are not part of a step. Unified memory and cuDNN's attention are not
# simulated.
_LEFT_OUT = {"compile", "cache_latents", "cache_text", "paged-adamw8bit", "cudnn"}
_ONE_VALUE = {"quantized text encoders": ("none",)}
_SIZES: dict[str, tuple[Any, ...]] = {"batch_size": (1, 2, 3), "size": ("small", "large")}
_RESOLUTION_PX = {"small": 128, "large": 256}
_VIDEO_RESOLUTION_PX = {"small": 64, "large": 128}
NUM_STEPS = 2
"""The second step is like all that would follow."""


@dataclass(frozen=True)
class DeviceCase:
    """One training."""

    family: str
    cell: Cell
    batch_size: int
    size: str

    @property
    def name(self) -> str:
        usual = {next(iter(values)) for values in axes().values()}
        chosen = [value for value in self.cell if value not in usual]
        return " ".join((self.family, *chosen, f"batch {self.batch_size}", self.size))

    def mapping(self, model: Path, cache_dir: Path) -> dict[str, Any]:
        """The experiment, for `foretune plan` and for the training."""
        facts = FAMILY_FACTS[self.family]
        resolutions = _VIDEO_RESOLUTION_PX if facts.is_video else _RESOLUTION_PX
        # On a CPU, the backward pass of convolutions in fp16 takes minutes at the large size.
        size = "small" if facts.is_unet and "fp16" in self.cell else self.size
        base: dict[str, Any] = {
            "name": "g3",
            "model": str(model),
            "data": {
                "kind": "shapes",
                "num_samples": 6,
                "resolution": resolutions[size],
                "cache_dir": str(cache_dir),
                "max_text_tokens": 16,
                "held_out": 0,
                **of_model(model),
            },
            "train": {"steps": NUM_STEPS, "batch_size": self.batch_size},
            "validate": {"num_held_out": 0},
            "parallel": {"device": "cuda"},
        }
        mapping = experiment_of(self.cell, base)
        if mapping["method"]["kind"] == "oft":
            mapping["method"]["block_size"] = 4  # the layers are tiny
        return mapping


def device_cases(num_cases: int) -> list[DeviceCase]:
    """The first rows of a fixed table, in which families take turns; each row adds as many new pairs of values as any
    of those drawn for it.
    """
    draw = random.Random(_SEED)
    chosen: list[DeviceCase] = []
    met: set[Any] = set()
    families = list(TRAINABLE)
    while len(chosen) < num_cases:
        family = families[len(chosen) % len(families)]
        methods = ("full",) if len(chosen) % _EVERY_FULL == 0 else _values()[0]
        drawn = [_drawn(draw, family, methods) for _ in range(_NUM_DRAWN)]
        best = max((case for case in drawn if case not in chosen), key=lambda case: len(pairs(case) - met))
        chosen.append(best)
        met |= pairs(best)
    return chosen


def pairs(case: DeviceCase) -> set[Any]:
    return set(pairs_of((case.family, *case.cell, str(case.batch_size), case.size)))


def _drawn(draw: random.Random, family: str, methods: tuple[str, ...]) -> DeviceCase:
    cell: Cell
    while True:
        cell = tuple(draw.choice(values) for values in (methods, *_values()[1:]))
        if _is_possible(family, cell):
            break
    return DeviceCase(family, cell, **{name: draw.choice(values) for name, values in _SIZES.items()})


@cache
def _values() -> tuple[tuple[str, ...], ...]:
    return tuple(
        _ONE_VALUE.get(name, tuple(value for value in values if value not in _LEFT_OUT))
        for name, values in axes().items()
    )


@cache
def _is_possible(family: str, cell: Cell) -> bool:
    if refusals(cell, family, "cuda"):
        return False
    chosen = dict(zip(axes(), cell, strict=True))
    is_half = chosen["precision"] not in ("fp32", "tf32")
    # The flash kernel takes half types, and no masks, which some families have.
    if chosen["attention"] == "flash" and not (is_half and family in _WITHOUT_MASKS):
        return False
    # The simulated device computes on a CPU, for which oneDNN has no fp16 kernel for the weights' gradient of a
    # convolution: a step takes minutes.
    return not (chosen["method"] == "full" and chosen["precision"] == "fp16" and FAMILY_FACTS[family].is_unet)


_WITHOUT_MASKS = ("ddpm", "sd3", "flux", "sd1", "sdxl", "wan", "ovis_image")
