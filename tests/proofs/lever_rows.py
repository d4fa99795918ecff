"""What each lever does to one small FLUX on this CPU: forecast, then measured."""

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretune.choices.experiment import Experiment
from foretune.models.family import Family
from foretune.step.training_step import TrainingStep
from foretune.trace.recorder import Allocation
from foretune.trace.tracing import Numerics, StepSizes, TracedStep, trace_step
from tests.proofs.h14_cases import transformer
from tests.proofs.h14_worker import batch, build, measured_by_profiler

Sections = Mapping[str, Mapping[str, Any]]

_LR = 1e-4
_LORA: Sections = {"method": {"kind": "lora", "rank": 16}}
_FULL: Sections = {"method": {"kind": "full"}, "train": {"max_grad_norm": None}}
_AVERAGED: Sections = {**_FULL, "train": {"max_grad_norm": None, "ema": {}}}
_AGAIN = {"gradient_checkpointing": 1.0}


@dataclass(frozen=True)
class Lever:
    """One row, with the row it is compared to: what is asked besides, and what it should do to the loss."""

    name: str
    sections: Sections
    compared_to: str | None
    changes_bits: bool = False
    is_modelled: bool = True

    @property
    def uses_host(self) -> bool:
        return any(word in self.name for word in ("host", "offload", "swapped"))


def _lora(name: str, levers: Mapping[str, Any], **more: Any) -> Lever:
    return Lever(name, {**_LORA, "levers": levers}, "LoRA", **more)


LEVERS: tuple[Lever, ...] = (
    Lever("LoRA", _LORA, None),
    _lora("gradient_checkpointing=0.5", {"gradient_checkpointing": 0.5}),
    _lora("gradient_checkpointing=1", _AGAIN),
    _lora("... checkpoint_segment=2", {**_AGAIN, "checkpoint_segment": 2}),
    _lora("... checkpoint_stride=2", {**_AGAIN, "checkpoint_stride": 2}),
    _lora("... checkpoint_parts=feed_forward", {**_AGAIN, "checkpoint_parts": "feed_forward"}),
    _lora("... block_swap=6 block_swap_prefetch=0", {**_AGAIN, "block_swap": 6, "block_swap_prefetch": 0}),
    _lora("... activation_offload=true", {**_AGAIN, "activation_offload": True}),
    _lora("activation_offload=true", {"activation_offload": True}),
    _lora("activation_offload_parts=attention", {"activation_offload": True, "activation_offload_parts": "attention"}),
    _lora("attention=math", {"attention": "math"}, changes_bits=True),
    _lora("compile=regional", {"compile": "regional"}, changes_bits=True, is_modelled=False),
    Lever("full", _FULL, None),
    Lever("fused_backward=true", {**_FULL, "levers": {"fused_backward": True}}, "full"),
    Lever("optimizer_offload=true", {**_FULL, "levers": {"optimizer_offload": True}}, "full", changes_bits=True),
    Lever("full, EMA", _AVERAGED, "full"),
    Lever("... ema_offload=true", {**_AVERAGED, "levers": {"ema_offload": True}}, "full, EMA"),
)


@dataclass(frozen=True)
class LeverTraining:
    """The model that all rows train, with so many blocks of each kind."""

    lever: Lever
    depths: tuple[int, int]
    accumulation = 1

    def model(self) -> Family:
        return transformer("flux", num_heads=10, head_dim=48, depths=self.depths)

    def sizes(self) -> StepSizes:
        return StepSizes(batch_size=2, height_px=256, width_px=256, num_text_tokens=64)

    def experiment(self) -> Experiment:
        base = {"model": "small", "data": {"kind": "shapes"}, "parallel": {"device": "cpu"}}
        sections = {**self.lever.sections, "train": {"steps": 1000, **self.lever.sections.get("train", {})}}
        return Experiment.model_validate({**base, **sections})


@dataclass(frozen=True)
class Row:
    """One lever's numbers; None where nothing is forecast."""

    lever: Lever
    forecast_peak_bytes: int | None
    forecast_host_bytes: int | None
    """What would wait on the host of an accelerator; here both are one memory."""
    peak_bytes: int
    forecast_work: float | None
    """FLOPs as a share of those of the row it is compared to."""
    step_time: float | None
    """The same of the time of a step: median over rounds in which all rows take turns."""
    loss: float
    same_bits: bool | None


def examine(levers: Sequence[Lever], depths: tuple[int, int], num_loss_steps: int, num_rounds: int) -> list[Row]:
    """Forecast first; then memory; then losses and times, all rows in turns so that a slow moment hits all."""
    trainings = {lever.name: LeverTraining(lever, depths) for lever in levers}
    traced = {name: _traced(training) for name, training in trainings.items() if training.lever.is_modelled}
    peaks = {name: _measured_peak_bytes(training) for name, training in trainings.items()}
    steps = {name: _Running(training) for name, training in trainings.items()}
    losses = {name: [running.step() for _ in range(num_loss_steps)] for name, running in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(num_rounds):
        for name, running in steps.items():
            began_s = time.perf_counter()
            running.step()
            times[name].append(time.perf_counter() - began_s)
    rows = []
    for lever in levers:
        other, training = lever.compared_to, trainings[lever.name]
        found, base = traced.get(lever.name), traced.get(other or "")
        rows.append(
            Row(
                lever=lever,
                forecast_peak_bytes=_peak_bytes(found) if found else None,
                forecast_host_bytes=_peak_bytes(_traced(training, "cuda"), only_host=True) if lever.uses_host else None,
                peak_bytes=peaks[lever.name],
                forecast_work=_flops(found) / _flops(base) if found and base else None,
                step_time=_ratio(times[lever.name], times[other]) if other and num_rounds else None,
                loss=losses[lever.name][-1],
                same_bits=losses[lever.name] == losses[other] if other else None,
            )
        )
    return rows


class _Running:
    """A built training step, fed with the same drawn numbers as all others."""

    def __init__(self, training: LeverTraining) -> None:
        family, sizes = training.model(), training.sizes()
        torch.manual_seed(0)
        self._step: TrainingStep = build(training, family)
        self._batch = batch(family, sizes)
        chance = torch.Generator().manual_seed(1)
        for tensor in (self._batch.moments, self._batch.noise, *(self._batch.conditioning or {}).values()):
            if tensor is not None and tensor.is_floating_point():
                tensor.normal_(generator=chance).mul_(0.5)
        self._number = 0

    def step(self) -> float:
        outcome = self._step(self._number, _LR, (self._batch,), 1)
        self._number += 1
        return float(outcome.loss)


def _traced(training: LeverTraining, numerics: Numerics = "cpu") -> TracedStep:
    return trace_step(training.experiment(), training.model(), training.sizes(), numerics)


def _measured_peak_bytes(training: LeverTraining) -> int:
    gc.collect()
    return int(measured_by_profiler(training)["peak_bytes"])


def _peak_bytes(traced: TracedStep, *, only_host: bool = False) -> int:
    live = peak = 0
    alive: dict[int, int] = {}
    for event in traced.recording.events:
        if isinstance(event, Allocation):
            counted = not only_host or event.number in traced.on_host
            alive[event.number] = event.num_bytes if counted else 0
            live += alive[event.number]
            peak = max(peak, live)
        else:
            live -= alive.pop(event.number)
    return peak


def _flops(traced: TracedStep) -> float:
    return sum(operation.flops for operation in traced.recording.operations)


def _ratio(times_s: Sequence[float], base_s: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(times_s, base_s, strict=True))
