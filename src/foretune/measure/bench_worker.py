"""One repeat of a bench, in a process of its own: `python -m foretune.measure.bench_worker`, a request on its input.

What it measured in training is an ordinary run directory without checkpoints.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from foretune.accelerator.memory import reset_peaks
from foretune.choices.experiment import Experiment
from foretune.choices.running import Parallel
from foretune.config.reading import Asked, understand
from foretune.core.errors import UserError
from foretune.core.memory_errors import lacking_memory_in
from foretune.core.memory_limit import limit_memory
from foretune.core.observer import Observer
from foretune.core.values import Plan
from foretune.core.values.run_record import Measured
from foretune.measure.bench_request import InferenceRequest, TrainingRequest
from foretune.measure.peak import catalogue_peak, measured_peak
from foretune.measure.synthetic import prepare_random, prepare_synthetic
from foretune.measure.worker_output import Teller, answer_once
from foretune.models.locating import locate
from foretune.record.events import EventLog
from foretune.record.locking import locked
from foretune.record.run_directory import RunDirectory
from foretune.stats.utilisation import ImpossibleSpeed, utilisation
from foretune.training.alike import check_alike
from foretune.training.launching import launch_once, launch_parts
from foretune.training.preparing import Prepared, prepare
from foretune.training.rank_process import refuse_failure
from foretune.training.ranks import ALONE, Ranks
from foretune.training.session import Session
from foretune.training.train import new_run

_MOST_LETTERS = 500
_RANK_WORKER = "foretune.measure.bench_ranks"


def measure_training(request: TrainingRequest, observer: Observer) -> Path:
    """Makes the steps, in as many processes as there are devices, and returns their run directory."""
    asked = understand(request.asked, source="The bench's experiment")
    parallel = asked.experiment.parallel
    if parallel.devices == 1:
        return measure_steps(request, asked, observer).path
    run, _ = launch_once("A bench", parallel, _RANK_WORKER, request.to_mapping(), observer)
    return run.path


def measure_steps(request: TrainingRequest, asked: Asked, observer: Observer, ranks: Ranks = ALONE) -> RunDirectory:
    """Makes the steps in this process and those that it has joined."""
    limit_memory(request.memory_limit_bytes)
    prepared, revision = _prepared(request, asked, observer, ranks)
    if ranks.size > 1:
        check_alike(prepared)
    run = new_run(Path(request.directory), request.folder, ranks)
    if ranks.is_first:
        effective = {**prepared.effective, "model_revision": revision, "is_synthetic": request.is_synthetic}
        effective |= {"has_random_weights": True} if request.has_random_weights else {}
        effective |= request.about or {}
        run.write_experiment(asked.as_asked, asked.experiment, effective)
        run.write_plan(None if request.plan is None else Plan.from_mapping(request.plan))
    observer.began(run.path)
    session = Session(run, prepared, observer, steps_only=True, warnings=asked.warnings)
    # The plan forecasts what preparing takes; here the steps are measured.
    reset_peaks(prepared.device)
    with locked(run.lock) if ranks.is_first else nullcontext():
        outcome = session.run_loop()
        measured = session.measured(outcome)
        if ranks.is_first:
            measured = _with_compiling(measured, session, request)
            # Written twice: what measuring the device's peak does to the process must not cost the measurement.
            run.write_record(session.record(outcome, measured))
            run.write_record(session.finish(outcome, _with_utilisation(measured, session, request, observer)))
    if ranks.size > 1:
        refuse_failure(outcome)
    return run


def _prepared(request: TrainingRequest, asked: Asked, observer: Observer, ranks: Ranks) -> tuple[Prepared, str | None]:
    """The run, and the exact revision of its model if it has one."""
    if request.has_random_weights:
        return prepare_random(asked.experiment, asked.model, observer, ranks), None
    folder, revision = locate(asked.model)
    make = prepare_synthetic if request.is_synthetic else prepare
    return make(asked.experiment, folder, observer, ranks), revision


def _with_compiling(measured: Measured, session: Session, request: TrainingRequest) -> Measured:
    if measured.median_step_s is None:
        return measured
    num_warmup, step_s = measured.num_warmup_steps or 0, measured.median_step_s
    return measured.model_copy(
        update={
            "compile_s": _compile_s(session.prepared.experiment, session.speed_times_s(), num_warmup, step_s),
            "model_flops_per_step": None if request.model_flops is None else round(request.model_flops),
        }
    )


def _with_utilisation(measured: Measured, session: Session, request: TrainingRequest, observer: Observer) -> Measured:
    """The same with the utilisation; without it, and with a warning, if it could not be measured."""
    if measured.median_step_s is None:
        return measured
    try:
        share = _utilisation(session.prepared, request, measured.median_step_s, session.events)
    except (RuntimeError, MemoryError, ImpossibleSpeed) as error:
        name = "" if isinstance(error, ImpossibleSpeed) else f"{type(error).__name__}: "
        text = f"Utilisation was not measured: {name}{str(error).strip()[:_MOST_LETTERS]}"
        session.loop.tally.warnings.append(text)
        observer.warning(text)
        return measured
    return measured.model_copy(update={"utilisation": share})


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
    request = InferenceRequest(**question)
    if request.devices > 1:
        parallel = Parallel.model_validate({"devices": request.devices, "device": request.device})
        try:
            return launch_parts("A bench of inference", parallel, _RANK_WORKER, request.to_mapping(), teller)
        except UserError as error:
            if lacking_memory_in(str(error)) is not None:
                raise MemoryError(str(error)) from error
            raise
    from foretune.measure.inference import measure_inference

    return measure_inference(request, teller)


if __name__ == "__main__":
    answer_once(answer)
