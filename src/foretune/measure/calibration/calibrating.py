"""Measures a device and composes its profile."""

import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import torch

from foretune.core.observer import Observer
from foretune.core.units import share_text
from foretune.core.values.device_profile import (
    BUSY_SPREAD,
    AttentionPoint,
    CollectivePoint,
    ConvolutionPoint,
    CopyPoint,
    DeviceProfile,
    Dispatch,
    KernelTime,
    MeasuredFormat,
    MemoryPoint,
    ProductPoint,
)
from foretune.measure.calibration.collectives import measure_collectives
from foretune.measure.calibration.dispatching import measure_dispatch
from foretune.measure.calibration.pieces import Kernels, Key
from foretune.measure.calibration.rounds import Rounds, Stopwatch, TimedPiece, measure_in_rounds
from foretune.measure.calibration.sizes import FEW, ON_CPU, ON_CPU_COARSE, ON_GPU, ON_GPU_COARSE, Sizes
from foretune.measure.calibration.stopwatches import stopwatch_of
from foretune.record.device_profiles import cpu_device_name, host_id
from foretune.step.precision import PrecisionPolicy
from foretune.training.busyness import BusyWatch
from foretune.training.devices import device_type

SLOW_FACTOR = 10.0
"""A number format whose products take this many times as long as those of the first one is slow."""
_PROBE = 256
_DISPATCH_SHARE = 0.04
_WINDOW_BYTES = {"cpu": 16 * 2**20}
_GPU_WINDOW_BYTES = 256 * 2**20
_LEAST_SHARE = 0.1
"""Of a measured time that remains at least when the call is subtracted."""


@dataclass(frozen=True)
class Threads:
    """Of the CPU."""

    num: int
    is_default: bool


@dataclass
class _Plan:
    """What will be measured."""

    pieces: list[TimedPiece] = field(default_factory=list)
    slow: list[MeasuredFormat] = field(default_factory=list)


@torch.no_grad()
def calibrate_device(
    device: torch.device,
    threads: Threads,
    budget_s: float,
    observer: Observer,
    now: Callable[[], float] = time.perf_counter,
) -> DeviceProfile:
    """Takes about the budget; torch already computes with these threads."""
    begin_s = now()
    stopwatch, busy = stopwatch_of(device, threads.num), BusyWatch()
    dispatch = measure_dispatch(device, budget_s * _DISPATCH_SHARE)
    plan = _planned(device, stopwatch)

    def progress(share: float) -> None:
        observer.preparing(f"measuring {device.type}", round(100 * share), 100)

    left_s = budget_s - (now() - begin_s)
    rounds = measure_in_rounds(plan.pieces, stopwatch, left_s, now, progress)
    collectives = measure_collectives(device)
    made = _profile(device, threads, dispatch, rounds, plan.slow, collectives)
    # One thread is measured by its own processor time, which others do not add to.
    found = () if device.type == "cpu" and threads.num == 1 else busy.warnings()
    return made.model_copy(
        update={
            "took_s": round(now() - begin_s, 1),
            "warnings": (*made.warnings, *found),
            "is_busy": made.is_busy or bool(found),
        }
    )


def device_name(device: torch.device) -> str:
    """As its driver reports it, which a plan learns without torch."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return cpu_device_name()  # Apple's GPUs have the name of the chip


def _planned(device: torch.device, stopwatch: Stopwatch) -> _Plan:
    is_cpu = device.type == "cpu"
    fine, coarse = (ON_CPU, ON_CPU_COARSE) if is_cpu else (ON_GPU, ON_GPU_COARSE)
    kernels = Kernels(device, _WINDOW_BYTES.get(device.type, _GPU_WINDOW_BYTES))
    plan = _Plan()
    first_s: float | None = None
    for number_format in _formats(device):
        probe_s = _probed(device, number_format, stopwatch)
        if probe_s is None:
            continue
        if first_s is not None and probe_s > SLOW_FACTOR * first_s:
            plan.slow.append(number_format)
        sizes = fine if first_s is None else FEW if number_format in plan.slow else coarse
        first_s = first_s or probe_s
        plan.pieces += _of_format(kernels, number_format, sizes)
    plan.pieces += kernels.memory(fine)
    if device.type != "cpu":
        plan.pieces += kernels.copies(fine)
    return plan


def _of_format(kernels: Kernels, number_format: MeasuredFormat, sizes: Sizes) -> list[TimedPiece]:
    parts = [kernels.products(number_format, sizes), kernels.convolutions(number_format, sizes)]
    if number_format != "tf32":
        parts.append(kernels.attention(number_format, sizes))
    return [piece for part in parts for piece in part]


def _formats(device: torch.device) -> tuple[MeasuredFormat, ...]:
    """The usual one of the device first: it is measured at most sizes."""
    if device.type == "cpu":
        return ("fp32", "bf16", "fp16")
    if device.type == "mps":
        return ("bf16", "fp16", "fp32")
    return ("bf16", "fp16", "tf32", "fp32")


def _probed(device: torch.device, number_format: MeasuredFormat, stopwatch: Stopwatch) -> float | None:
    """Seconds of one product; None where the device has no such products."""
    if number_format == "tf32" and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return None
    policy = PrecisionPolicy(number_format)
    with suppress(RuntimeError, TypeError), policy.products():
        left, right = (torch.randn(_PROBE, _PROBE, device=device).to(policy.compute_dtype) for _ in range(2))
        torch.mm(left, right)
        return min(stopwatch(lambda: torch.mm(left, right)) for _ in range(5))
    return None


def _profile(
    device: torch.device,
    threads: Threads,
    dispatch: Dispatch,
    rounds: Rounds,
    slow: list[MeasuredFormat],
    collectives: tuple[CollectivePoint, ...],
) -> DeviceProfile:
    points = points_of(rounds.timings, dispatch if device.type == "cpu" else None)
    spread = _median([timing.spread for timing in rounds.timings.values()])
    return DeviceProfile(
        device=device_name(device),
        kind=device_type(device),
        num_threads=threads.num,
        is_default_threads=threads.is_default,
        host=host_id(),
        torch=torch.__version__,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        took_s=0.0,
        num_rounds=rounds.num_rounds,
        **points,
        dispatch=dispatch,
        collectives=collectives,
        slow_formats=tuple(slow),
        spread=round(spread, 3),
        is_busy=spread > BUSY_SPREAD,
        warnings=tuple(_warnings(spread, rounds.num_rounds)),
    )


def points_of(timings: Mapping[Hashable, KernelTime], dispatch: Dispatch | None) -> dict[str, Any]:
    """The points of a profile by field. On a CPU, the time of the call is subtracted: the caller adds dispatching."""
    found: dict[str, list[Any]] = {name: [] for name in ("products", "convolutions", "attention", "memory")}
    copies: dict[int, KernelTime] = {}
    for key, measured in timings.items():
        assert isinstance(key, Key), "pieces of kernels"
        timing = _rounded(measured if dispatch is None else _without_call(measured, key, dispatch))
        number_format = cast(MeasuredFormat, key.number_format)
        if key.what == "product":
            found["products"].append(ProductPoint(number_format, *key.sizes, timing))  # type: ignore[call-arg,arg-type]
        elif key.what == "convolution":
            m, n, k = key.sizes
            found["convolutions"].append(ConvolutionPoint(number_format, m, n, k, key.is_backward, timing))
        elif key.what == "attention":
            heads, queries, keys, dim = key.sizes
            found["attention"].append(AttentionPoint(number_format, heads, queries, keys, dim, key.is_backward, timing))
        elif key.what == "memory":
            found["memory"].append(MemoryPoint(cast(Any, key.number_format), key.sizes[0], timing))
        else:
            copies[key.sizes[0]] = max(timing, copies.get(key.sizes[0], timing))
    return {
        **{name: tuple(sorted(points)) for name, points in found.items()},
        "copies": tuple(CopyPoint(num_bytes, timing) for num_bytes, timing in sorted(copies.items())),
    }


def _without_call(timing: KernelTime, key: Key, dispatch: Dispatch) -> KernelTime:
    call_s = (dispatch.backward_call if key.is_backward else dispatch.call).seconds
    return KernelTime(max(timing.seconds - call_s, _LEAST_SHARE * timing.seconds), timing.spread)


def _rounded(timing: KernelTime) -> KernelTime:
    """Four digits are more than any timing is good for, and keep the file small."""
    return KernelTime(float(f"{timing.seconds:.4g}"), round(timing.spread, 3))


def _warnings(spread: float, num_rounds: int) -> list[str]:
    found = []
    if spread > BUSY_SPREAD:
        found.append(
            f"The machine was busy: half of the samples took {share_text(spread)} longer than the fastest or more. "
            "Calibrate again when it is idle."
        )
    if num_rounds < 2:  # noqa: PLR2004
        found.append("The time was too short for two rounds, so nothing says how far the figures are off.")
    return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 1.0
