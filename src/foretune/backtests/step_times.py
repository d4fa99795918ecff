"""Published speeds of trainings on one device, and what the plan says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from foretune import catalog
from foretune.backtests.questions import BacktestQuestion, LeftOut
from foretune.backtests.rows import question
from foretune.catalog import Measurement
from foretune.choices.experiment import Experiment
from foretune.choices.method import rank_of
from foretune.config.from_trainers.dialects import DIALECTS, Dialect
from foretune.planner.expansion import expand_step
from foretune.planner.sizing import StepSize, with_default_targets
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.step_time import StepParts, TimedStep, step_parts
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.traces import Traces, mixed_step, variant_of
from foretune.planner.transfers import moved_in_a_step
from foretune.trace.shipped import geometries

_ROTATED_INT8 = "int8 (sdnq hadamard, quantized matmul)"
"""The published words for a base whose layers are those of `timing.rotated_int8`."""


@dataclass(frozen=True, kw_only=True)
class SpeedQuestion:
    """A published training with its speed."""

    asked: BacktestQuestion
    num_passes: int
    """Whose gradients make one step."""
    device: str
    published_s: float
    """Of one optimizer step."""
    is_rotated_int8: bool = False
    """Whether the base is quantised by SDNQ; the experiment asks for the same training without."""

    @property
    def base(self) -> str:
        """The numbers of the frozen base and the backend that makes them."""
        return "int8, rotated (SDNQ)" if self.is_rotated_int8 else self.asked.base

    @property
    def checkpointing(self) -> str:
        levers = self.asked.experiment.levers
        return f"{levers.gradient_checkpointing} {levers.checkpoint_segment} {levers.checkpoint_stride}"


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """What tables and data sheets give for a row."""

    question: SpeedQuestion
    parts: StepParts


def has_speed(row: Measurement) -> bool:
    """Whether a row belongs to the backtest of speeds: a training of grade A with a speed."""
    return row.task == "train" and row.grade == "A" and row.samples_per_s_per_gpu is not None


def speed_question(row: Measurement, dialects: Sequence[Dialect] = DIALECTS) -> SpeedQuestion | LeftOut:
    """What a row asks of the time of a step, or why it cannot be asked. Decided without a forecast."""
    # A speed needs no peak: a row whose peak is unclear is asked all the same.
    is_rotated = (row.quantization or "").lower() == _ROTATED_INT8
    # Its time is known from what it runs; its temporaries are not, so that its memory is not asked.
    as_asked = {"quantization": "none", "method": row.method.removeprefix("q")} if is_rotated else {}
    asked = question(row.model_copy(update={"peak_mem": None, "peak_bound": None, **as_asked}), dialects)
    if isinstance(asked, LeftOut):
        return asked
    if asked.device is None:
        return LeftOut(row_id=row.id, source=row.framework, reason=f"the device {row.gpu} is not in the catalogue")
    if asked.experiment.method.kind == "lokr":
        reason = "LoKr: LyCORIS computes its products in Python of its own, whose time on the host is not known"
        return LeftOut(row_id=row.id, source=row.framework, reason=reason)
    assert row.samples_per_s_per_gpu is not None
    num_passes = row.num_accumulation_steps or 1
    samples = asked.sizes.batch_size * num_passes
    return SpeedQuestion(
        asked=asked,
        num_passes=num_passes,
        device=asked.device,
        published_s=samples / row.samples_per_s_per_gpu,
        is_rotated_int8=is_rotated,
    )


def speed_result(question: SpeedQuestion, traces: Traces, work_times: WorkTimes) -> SpeedResult:
    """The step of a published row as its program runs it. Raises `NotTraced` or `NotKnown`."""
    step = _timed_step(question, traces)
    device = catalog.device(question.device)
    speed = speed_of(device, question.asked.dialect.sdpa)
    parts = step_parts(step, traces, speed, work_times)
    return SpeedResult(
        question=question,
        parts=parts,
    )


def _timed_step(question: SpeedQuestion, traces: Traces) -> TimedStep:
    asked = question.asked
    geometry = geometries()[asked.model]
    experiment = _with_passes(with_default_targets(asked.experiment, geometry), question.num_passes)
    size = StepSize(
        batch_size=asked.sizes.batch_size,
        height_px=asked.sizes.height_px,
        width_px=asked.sizes.width_px,
        num_frames=asked.sizes.num_frames,
        num_text_tokens=asked.sizes.num_text_tokens,
        rank=rank_of(experiment.method),
    )
    mixed = mixed_step(traces, experiment, size, geometry, habits=asked.dialect.habits)
    sizes, variant = size.in_trace(geometry), variant_of(experiment, geometry)
    step = expand_step(mixed.kept, mixed.checkpointed, sizes, variant, traces.expansions)
    return TimedStep(
        experiment=experiment,
        size=size,
        geometry=geometry,
        moved=moved_in_a_step(mixed, experiment, sizes, step),
        habits=asked.dialect.habits,
        copies_cross=asked.dialect.copies_cross,
        is_rotated_int8=question.is_rotated_int8,
    )


def _with_passes(experiment: Experiment, num_passes: int) -> Experiment:
    """Gradients that stay between steps are asked for as passes that accumulate; they are not computed twice."""
    train = experiment.train.model_copy(update={"gradient_accumulation": num_passes})
    return experiment.model_copy(update={"train": train})
