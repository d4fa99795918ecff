"""The time of a step as a part of a plan: the whole with its band, what it waits for, how busy the device is."""

from typing import get_args

from foretune.catalog.devices import Device
from foretune.choices.experiment import Experiment
from foretune.choices.objections.quantization import FLOAT8_PRODUCTS
from foretune.core.values.plan_time import Resource, StepTime
from foretune.planner.timing.constants import time_error
from foretune.planner.timing.interconnect import interconnect_of
from foretune.planner.timing.parallel_time import ParallelSeconds, parallel_step_seconds
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.stated_links import AS_USUAL, StatedLinks
from foretune.planner.timing.step_time import StepSeconds, TimedStep
from foretune.planner.traces import Traces

_TERA = 1e12


def seconds_on(
    step: TimedStep, traces: Traces, device: Device, speed: DeviceSpeed, links: StatedLinks = AS_USUAL
) -> ParallelSeconds:
    """Returns the seconds of a step. Raises `NotKnown` if something is not known, or if it cannot be true."""
    unknown_speed(step.experiment)
    stated = links if step.experiment.parallel.devices > 1 else AS_USUAL
    found = parallel_step_seconds(step, traces, speed, traces.work_times, interconnect_of(device, stated))
    checked_seconds(found.alone, step.experiment, device)
    return found


def unknown_speed(experiment: Experiment) -> None:
    """Raises `NotKnown` for what no device's speed is known at."""
    if experiment.levers.compile != "off":
        raise NotKnown("the speed of compiled blocks")


def checked_seconds(found: StepSeconds, experiment: Experiment, device: Device) -> StepSeconds:
    """Returns them unchanged, or raises `NotKnown` if the device cannot be that fast."""
    peak = peak_flops_per_s(experiment, device)
    if peak is not None and found.hardware_flops > peak * found.step_s:
        raise NotKnown(f"a step time that {device.title} can reach: the predicted one is above its peak")
    return found


def step_time(seconds: ParallelSeconds, experiment: Experiment, device: Device, speed: DeviceSpeed) -> StepTime:
    peak, alone, found = peak_flops_per_s(experiment, device), seconds.alone, seconds.shares()
    error = time_error(speed.evidence)
    shares = {name: share for name in get_args(Resource) if (share := found.get(name, 0.0)) > 0}

    def share_of_peak(flops: float) -> float | None:
        return None if peak is None else flops / (peak * seconds.step_s)

    return StepTime(
        step_s=seconds.step_s,
        low_s=seconds.step_s / (1 + error),
        high_s=seconds.step_s / (1 - error),
        shares=shares,
        bound_by=max(shares, key=lambda name: shares[name], default="compute"),
        evidence=speed.evidence,
        samples_per_s=experiment.samples_per_step() / seconds.step_s,
        model_flops=alone.model_flops,
        hardware_flops=alone.hardware_flops,
        model_utilisation=share_of_peak(alone.model_flops),
        hardware_utilisation=share_of_peak(alone.hardware_flops),
        hidden_copy_s=alone.hidden_copy_s,
    )


def peak_flops_per_s(experiment: Experiment, device: Device) -> float | None:
    """Returns the peak of the fastest products of the step; None if the catalogue does not state it."""
    rates = {
        "fp32": device.fp32_tflops,
        "tf32": device.tf32_dense_tflops,
        "bf16": device.bf16_dense_tflops,
        # The accumulation of a kernel is not part of the experiment.
        "fp16": device.fp16_accumulate_dense_tflops or device.fp16_dense_tflops,
    }
    rate = rates[experiment.train.precision]
    if experiment.train.precision == "bf16" and rate is None:
        rate = device.fp32_tflops  # emulated
    if experiment.quantize.denoiser in FLOAT8_PRODUCTS and device.fp8_dense_tflops is not None:
        rate = device.fp8_dense_tflops
    return None if rate is None else rate * _TERA / device.num_logical_devices
