"""What the plan says about the steps that a shared measurement timed: nothing before them, no validation, no saving."""

from dataclasses import dataclass

from foretune import catalog
from foretune.backtests.shared.row_format import SharedMeasured, SharedPlan, SharedRow
from foretune.catalog.devices import Device, Kind, generic_card
from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference, resolve_model
from foretune.choices.step_form import Numerics
from foretune.core.units import GIB, MIB
from foretune.planner.asking import LiveSource, find_subject
from foretune.planner.device_requests import cpu_here
from foretune.planner.overheads import usable_bytes
from foretune.planner.phases import TRAINING
from foretune.planner.planning import footprint, forecast_on
from foretune.planner.sizing import size_of, with_default_targets
from foretune.planner.timing.terms import PUBLISHED, Terms
from foretune.planner.traces import Traces
from foretune.planner.verdict import judge


@dataclass(frozen=True, kw_only=True)
class StepsQuestion:
    """The steps of one measurement on a device."""

    experiment: Experiment
    model: ModelReference
    height_px: int
    width_px: int
    num_frames: int
    device: Device
    context_bytes: int | None
    """What the process takes before the model, where the host is the device."""


def question_of(row: SharedRow) -> StepsQuestion:
    """What a row asks of the plan. Raises `UserError` for a model that nobody else has."""
    measured = row.measured
    return StepsQuestion(
        experiment=row.experiment,
        model=resolve_model(row.model),
        height_px=measured.height_px,
        width_px=measured.width_px,
        num_frames=measured.num_frames,
        device=_device(row),
        context_bytes=measured.context_bytes,
    )


def _device(row: SharedRow) -> Device:
    """The catalogue's, with the memory that the row gives; a card of its size where the catalogue has none."""
    environment = row.environment
    if environment.device_kind == "cpu":
        return cpu_here(environment.device_bytes)
    kind: Kind = environment.device_kind
    if kind == "mps":
        like = next(device for device in catalog.devices().values() if device.kind == kind)
        return like.model_copy(update={"memory_gb": environment.device_bytes / GIB})
    known = catalog.device_by_driver_name(environment.device, environment.device_bytes, kind)
    if known is not None:
        return known
    total_mib = environment.device_bytes // MIB
    return generic_card("card", memory_gb=total_mib / 1024, reported_memory_mib=total_mib, kind=kind)


def forecast_steps(
    question: StepsQuestion, live: LiveSource | None = None, terms: Terms = PUBLISHED, *, as_measured_here: bool = False
) -> SharedPlan:
    """The plan for the steps alone. Raises `UserError` where there can be none.

    `live` records steps that have no trace. `as_measured_here` records a CPU's steps with its own numerics.
    """
    subject = find_subject(question.model, live)
    experiment = with_default_targets(
        question.experiment.model_copy(update={"model": subject.row.name}), subject.geometry
    )
    size = size_of(
        experiment,
        subject.geometry,
        height_px=question.height_px,
        width_px=question.width_px,
        num_frames=question.num_frames if subject.geometry.default_num_frames > 1 else None,
    )
    traces = Traces(live.tracer(question.model) if live is not None else None)
    on_host = question.device.kind == "cpu"
    numerics: Numerics = "cpu" if on_host and as_measured_here else "cuda"
    found = footprint(
        experiment,
        subject,
        size,
        traces,
        trains_on_host=on_host,
        numerics=numerics,
        context_bytes=question.context_bytes if on_host else None,
    )
    judged = judge(
        dict(found.streams)[TRAINING],
        found.overhead_on(question.device),
        usable_bytes(question.device),
        error_share=found.error_share,
        replays=traces.replays,
    )
    time = forecast_on(found, question.device, terms).time
    return SharedPlan(
        allocated_bytes=judged.allocated_bytes,
        reserved_bytes=judged.reserved_bytes,
        process_low_bytes=judged.process.low,
        process_bytes=judged.process.likely,
        process_high_bytes=judged.process.high,
        step_s=None if time is None else time.step_s,
        step_low_s=None if time is None else time.low_s,
        step_high_s=None if time is None else time.high_s,
    )


_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_QUANTISED_BYTES = {"int8": 1.0, "float8": 1.0, "float8-dynamic": 1.0, "int8-bnb": 1.0, "nf4": 0.5}
_USUAL_UTILISATION = 0.4
"""A rule of thumb of people who train: 40 % of the device's peak."""


def baseline_bytes(experiment: Experiment, measured: SharedMeasured) -> int:
    """Parameters times bytes: weights, gradients and optimizer states; no activations."""
    train = experiment.train
    frozen = _QUANTISED_BYTES.get(experiment.quantize.denoiser, float(_BYTES[train.precision]))
    weight = _BYTES[train.weight_dtype]
    trained = 2 * weight + experiment.optimizer.spec.state_bytes_of(weight) + (0 if train.ema is None else 4)
    is_full = experiment.method.kind == "full"
    num_frozen = 0 if is_full else max(0, measured.num_params - measured.num_trained_params)
    before = measured.context_bytes or 0
    return round(num_frozen * frozen + measured.num_trained_params * trained) + before


def baseline_step_s(measured: SharedMeasured) -> float | None:
    """The step's products at 40 % of the device's peak; None where one of the two is not known."""
    if measured.hardware_flops is None or measured.peak_flops_per_s is None:
        return None
    return measured.hardware_flops / (_USUAL_UTILISATION * measured.peak_flops_per_s)
