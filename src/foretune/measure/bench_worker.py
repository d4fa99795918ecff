"""One repeat of a bench, in a process of its own: `python -m foretune.measure.bench_worker`, a request on its input.

What it measured in training is an ordinary run directory without checkpoints.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from foretune.choices.experiment import Experiment
from foretune.config.reading import understand
from foretune.core.interrupts import StopRequest
from foretune.core.observer import Observer
from foretune.core.values import Outcome, Plan
from foretune.core.values.run_record import Measured
from foretune.measure.bench_request import InferenceRequest, OperatorsRequest, TrainingRequest
from foretune.measure.memory_limit import limit_memory
from foretune.measure.peak import catalogue_peak, measured_peak
from foretune.measure.steps_alone import make_steps
from foretune.measure.synthetic import prepare_synthetic
from foretune.measure.worker_output import Teller, answer_once
from foretune.models.locating import locate
from foretune.record.environment import environment_fingerprint
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory
from foretune.stats.speed import samples_per_s
from foretune.stats.steady import find_steady
from foretune.stats.utilisation import utilisation
from foretune.training.checkpoints import CheckpointStore
from foretune.training.devices import peak_device_bytes, peak_host_bytes, peak_reserved_bytes
from foretune.training.loop import Loop
from foretune.training.preparing import Prepared, prepare
from foretune.training.recording import record_of
from foretune.training.telemetry.sampler import Sampler, open_sensors, uuids_of
from foretune.training.train import build_validator


def measure_training(request: TrainingRequest, observer: Observer) -> Path:
    """Makes the steps and returns their run directory."""
    limit_memory(request.memory_limit_bytes)
    asked = understand(request.asked, source="The bench's experiment")
    folder, revision = locate(asked.model)
    make = prepare_synthetic if request.is_synthetic else prepare
    prepared = make(asked.experiment, folder, observer)
    plan = None if request.plan is None else Plan.from_mapping(request.plan)
    run = RunDirectory.create(Path(request.directory), "runs")
    effective = {**prepared.effective, "model_revision": revision, "is_synthetic": request.is_synthetic}
    run.write_experiment(asked.as_asked, asked.experiment, effective)
    run.write_plan(plan)
    environment = environment_fingerprint()
    run.write_environment(environment)
    events = EventLog(run.events)
    events.append("started", first_step=0, environment=environment)
    started_s = time.perf_counter()
    sampler = Sampler(events, open_sensors(uuids_of(prepared.device)))
    loop, outcome = _steps(run, prepared, events, observer, sampler)
    wall_s = time.perf_counter() - started_s
    measured = _measured(loop, prepared, request, sampler, events)
    events.append("ended", status=outcome.status, steps_done=outcome.steps_done, reason=outcome.reason)
    events.close()
    record = record_of(
        run,
        prepared,
        outcome=outcome,
        environment=environment,
        measured=measured,
        wall_s=wall_s,
        warnings=(*asked.warnings, *loop.tally.warnings),
    )
    run.write_record(record)
    return run.path


def _steps(
    run: RunDirectory, prepared: Prepared, events: EventLog, observer: Observer, sampler: Sampler
) -> tuple[Loop, Outcome]:
    store = CheckpointStore(run.checkpoints, prepared.experiment.save.keep)
    loop = Loop(prepared, store, build_validator(run, prepared), events, observer, StopRequest(), instruments=[sampler])
    if prepared.device.type == "cuda":
        # What preparing took is the plan's to know; here the steps are measured.
        torch.cuda.reset_peak_memory_stats(prepared.device)
    return loop, make_steps(loop)


def _measured(loop: Loop, prepared: Prepared, request: TrainingRequest, sampler: Sampler, events: EventLog) -> Measured:
    experiment, times_s = prepared.experiment, loop.tally.step_times_s
    if not times_s:
        return Measured(peak_host_bytes=peak_host_bytes())
    steady = find_steady(times_s)
    step_s = statistics.median(times_s[steady.num_warmup :])
    # Before the peak is measured, which takes memory of its own.
    host_bytes = peak_host_bytes()
    return Measured(
        num_step_times=len(times_s),
        median_step_s=step_s,
        samples_per_s=samples_per_s(times_s, experiment.samples_per_step(), num_warmup=steady.num_warmup),
        peak_device_bytes=peak_device_bytes(prepared.device),
        peak_reserved_bytes=peak_reserved_bytes(prepared.device),
        peak_host_bytes=host_bytes,
        first_loss=loop.tally.first_loss,
        last_loss=loop.tally.last_loss,
        phases_s=loop.tally.phases_s or None,
        num_warmup_steps=steady.num_warmup,
        compile_s=_compile_s(experiment, times_s, steady.num_warmup, step_s),
        energy_j=sampler.energy.energy_j,
        mean_power_w=sampler.energy.mean_power_w,
        model_flops_per_step=None if request.model_flops is None else round(request.model_flops),
        utilisation=_utilisation(prepared, request, step_s, events),
    )


def _compile_s(experiment: Experiment, times_s: list[float], num_warmup: int, step_s: float) -> float | None:
    """What the first steps took beyond steady ones. At least the first: it is there that blocks are compiled."""
    if experiment.levers.compile == "off":
        return None
    return sum(times_s[: max(1, num_warmup)]) - max(1, num_warmup) * step_s


def _utilisation(prepared: Prepared, request: TrainingRequest, step_s: float, events: EventLog) -> float | None:
    if request.model_flops is None:
        return None
    precision = prepared.experiment.train.precision
    peak = catalogue_peak(prepared.device, precision) or measured_peak(prepared.device, precision)
    events.append("peak", flops_per_s=peak.flops_per_s, source=peak.source, is_measured=peak.is_measured)
    return utilisation(request.model_flops, step_s, peak.flops_per_s, peak.source)


def answer(question: dict[str, Any], teller: Teller) -> dict[str, Any]:
    """What a request gives."""
    kind = question.pop("kind")
    if kind == "training":
        return {"run": str(measure_training(TrainingRequest(**question), teller))}
    if kind == "operators":
        from foretune.measure.operator_times import measure_operators

        return measure_operators(OperatorsRequest(**question), teller)
    from foretune.measure.inference import measure_inference

    return measure_inference(InferenceRequest(**question), teller)


if __name__ == "__main__":
    answer_once(answer)
