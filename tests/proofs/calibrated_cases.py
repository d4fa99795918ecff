"""Configurations of small models whose planned and measured step times are compared on this CPU."""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers

import foretune as ft
from foretune.core.values.plan_time import StepTime
from foretune.data.loading import loader
from foretune.models.tiny import write_tiny_pipeline
from tests.training.short_runs import short_mapping, short_prepared

NUM_WARMUP = 2
WIDER: Mapping[str, Mapping[str, Any]] = {
    "ddpm": {"block_out_channels": (64, 128, 128, 128), "norm_num_groups": 32},
    "sd1": {"block_out_channels": (64, 64, 128), "attention_head_dim": 4, "norm_num_groups": 32},
    "sdxl": {"block_out_channels": (64, 128), "attention_head_dim": (2, 4), "norm_num_groups": 32},
    "flux": {"num_attention_heads": 8, "attention_head_dim": 48, "axes_dims_rope": (16, 16, 16)},
    "sd3": {"num_attention_heads": 8, "attention_head_dim": 48, "caption_projection_dim": 384},
}
"""Denoisers in which products count, beside the tiny ones in which the host does: 4 to 22 million weights."""


@dataclass(frozen=True)
class Case:
    """One configuration."""

    family: str
    is_wide: bool
    method: str
    batch_size: int
    is_checkpointed: bool
    side_px: int

    def __str__(self) -> str:
        words = [self.family, "wide" if self.is_wide else "tiny", self.method, f"batch {self.batch_size}"]
        return ", ".join([*words, f"{self.side_px} px", *(["checkpointed"] if self.is_checkpointed else [])])

    def sections(self, cache: Path) -> dict[str, Any]:
        return {
            "train": {"steps": 1000, "batch_size": self.batch_size},
            "data": {"resolution": self.side_px, "num_samples": 8, "held_out": 0.0, "cache_dir": str(cache)},
            "validate": {"num_held_out": 0},
            "levers": {"gradient_checkpointing": float(self.is_checkpointed)},
        }


def cases() -> tuple[Case, ...]:
    """28, families in turns, so that the first few are of several."""
    found = []
    for family in WIDER:
        adapter = "full" if family == "ddpm" else "lora"
        side_px = 32 if family == "ddpm" else 64
        of_family = [
            Case(family, False, "full", 1, False, side_px),
            Case(family, True, adapter, 2, True, side_px),
            Case(family, True, "full", 1, False, side_px),
            Case(family, False, adapter, 2, True, side_px),
            Case(family, True, "full", 4, False, side_px),
            Case(family, False, "full", 4, False, side_px),
        ]
        found.append(of_family if family == "ddpm" else [*of_family, Case(family, True, "lora", 2, False, side_px)])
    turns = itertools.zip_longest(*found)
    return tuple(case for turn in turns for case in turn if case is not None)


def model_of(case: Case, root: Path) -> Path:
    """The family's tiny pipeline, its denoiser wider where the case asks for it."""
    folder = root / f"{case.family}-{'wide' if case.is_wide else 'tiny'}"
    if folder.is_dir():
        return folder
    write_tiny_pipeline(case.family, folder)
    if case.is_wide:
        part = next(folder / name for name in ("unet", "transformer") if (folder / name).is_dir())
        config = json.loads((part / "config.json").read_text(encoding="utf-8"))
        wide = getattr(diffusers, config["_class_name"]).from_config({**config, **WIDER[case.family]})
        wide.save_pretrained(part)
    return folder


def planned(case: Case, root: Path) -> StepTime:
    """As `foretune plan EXPERIMENT --on here --live` has it."""
    mapping = short_mapping(model_of(case, root), root, case.method, **case.sections(root / "cache"))
    (plan,) = ft.plan(mapping, on="here", live=True, advice="none")
    assert plan.time is not None, plan.no_time
    return plan.time


def measured(chosen: Sequence[Case], root: Path, num_rounds: int) -> list[list[float]]:
    """Seconds of processor time of each step, which others do not add to. One step of each case in turn."""
    steps = [_steps(case, root) for case in chosen]
    found: list[list[float]] = [[] for _ in chosen]
    for number in range(NUM_WARMUP + num_rounds):
        for times_s, series in zip(found, steps, strict=True):
            taken_s = next(series)
            if number >= NUM_WARMUP:
                times_s.append(taken_s)
    return found


def _steps(case: Case, root: Path) -> Iterator[float]:
    model = model_of(case, root)
    prepared = short_prepared(model, root, case.method, **case.sections(root / "cache"))
    assert prepared.num_steps is not None
    for step, batch in enumerate(loader(prepared.batch_maker, 0, prepared.num_steps)):
        ready = prepared.encoders.ready(batch, prepared.device)
        begin_s = time.thread_time()
        prepared.step(step, 1e-4, iter([ready]), 1).loss.item()
        yield time.thread_time() - begin_s


def constant_rate_errors(steps: Sequence[StepTime], measured_s: Sequence[float]) -> list[float]:
    """Errors of the one rate, in operations a second, with the smallest median error: fitted to what it is checked
    against, as a forecast must not be.
    """
    flops = [step.hardware_flops for step in steps]

    def errors(s_per_flop: float) -> list[float]:
        return [abs(s_per_flop * count / seconds - 1) for count, seconds in zip(flops, measured_s, strict=True)]

    rates = [seconds / count for count, seconds in zip(flops, measured_s, strict=True)]
    return min(map(errors, rates), key=statistics.median)


def by_family(chosen: Sequence[Case], errors: Sequence[float], show: Callable[[float], str]) -> str:
    """The median of each."""
    found: dict[str, list[float]] = {}
    for case, error in zip(chosen, errors, strict=True):
        found.setdefault(case.family, []).append(error)
    return ", ".join(f"{family} {show(statistics.median(values))}" for family, values in found.items())
