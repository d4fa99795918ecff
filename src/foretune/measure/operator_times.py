"""Operators of a training step and how long each takes, by torch's profiler."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from foretune.choices.schedule import learning_rate
from foretune.config.reading import understand
from foretune.measure.bench_request import OperatorsRequest
from foretune.measure.synthetic import prepare_synthetic
from foretune.measure.worker_output import Teller
from foretune.models.locating import locate

_NUM_WARMUP_STEPS = 3


def measure_operators(request: OperatorsRequest, teller: Teller) -> dict[str, Any]:
    """Seconds of each operator without those it calls, over all profiled steps, on made-up data."""
    asked = understand(request.asked, source="The study's experiment")
    folder, _ = locate(asked.model)
    prepared = prepare_synthetic(asked.experiment, folder, teller)
    accumulation = asked.experiment.train.gradient_accumulation
    on_device = prepared.device.type == "cuda"

    def step(number: int) -> None:
        micro = range(number * accumulation, (number + 1) * accumulation)
        batches = (prepared.encoders.ready(prepared.batch_maker[index], prepared.device) for index in micro)
        prepared.step(
            number, learning_rate(asked.experiment.optimizer, number, prepared.num_steps), batches, accumulation
        )
        teller.progress("profiled steps", number + 1, request.num_steps + _NUM_WARMUP_STEPS)

    for number in range(_NUM_WARMUP_STEPS):
        step(number)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    with profile(activities=activities) as profiler:
        for number in range(_NUM_WARMUP_STEPS, _NUM_WARMUP_STEPS + request.num_steps):
            step(number)
        if on_device:
            torch.cuda.synchronize(prepared.device)
    rows = [
        {
            "name": row.key,
            "count": row.count,
            "self_s": (row.self_device_time_total if on_device else row.self_cpu_time_total) / 1e6,
        }
        for row in profiler.key_averages()
    ]
    rows = [row for row in rows if row["self_s"] > 0]
    return {"operators": rows, "total_s": sum(row["self_s"] for row in rows)}
