"""The published speeds of single-device trainings, and what the plan says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from foretune.backtests.dialects import DIALECTS, Dialect
from foretune.backtests.questions import BacktestQuestion, LeftOut
from foretune.backtests.rows import question
from foretune.catalog import Measurement
from foretune.choices.method import rank_of
from foretune.planner.expansion import expand_step
from foretune.planner.sizing import StepSize, with_default_targets
from foretune.planner.timing.step_time import TimedStep
from foretune.planner.traces import Traces, mixed_step, variant_of
from foretune.planner.transfers import moved_in_a_step
from foretune.trace.shipped import geometries


@dataclass(frozen=True, kw_only=True)
class SpeedQuestion:
    """A published training with its speed."""

    asked: BacktestQuestion
    device: str
    published_s: float
    """Of one optimizer step."""


def has_speed(row: Measurement) -> bool:
    """Whether a row belongs to the backtest of speeds: a training of grade A with a speed."""
    return row.task == "train" and row.grade == "A" and row.samples_per_s_per_gpu is not None


def speed_question(row: Measurement, dialects: Sequence[Dialect] = DIALECTS) -> SpeedQuestion | LeftOut:
    """What a row asks of the time of a step, or why it cannot be asked."""
    # A speed needs no peak: rows that publish none, or an unclear one, ask for their speed all the same.
    asked = question(row.model_copy(update={"peak_mem": None, "peak_bound": None}), dialects)
    if isinstance(asked, LeftOut):
        return asked
    if asked.device is None:
        return LeftOut(row_id=row.id, source=row.framework, reason=f"the device {row.gpu} is not in the catalogue")
    assert row.samples_per_s_per_gpu is not None
    samples = asked.sizes.batch_size * asked.experiment.train.gradient_accumulation
    return SpeedQuestion(asked=asked, device=asked.device, published_s=samples / row.samples_per_s_per_gpu)


def timed_step(question: SpeedQuestion, traces: Traces) -> TimedStep:
    """The step of a published row as its program runs it."""
    asked = question.asked
    geometry = geometries()[asked.model]
    experiment = with_default_targets(asked.experiment, geometry)
    size = StepSize(
        batch_size=asked.sizes.batch_size,
        height_px=asked.sizes.height_px,
        width_px=asked.sizes.width_px,
        num_frames=asked.sizes.num_frames,
        num_text_tokens=asked.sizes.num_text_tokens,
        rank=rank_of(experiment.method),
    )
    mixed = mixed_step(traces, experiment, size, geometry, habits=asked.dialect.habits)
    sizes = size.in_trace(geometry)
    step = expand_step(mixed.kept, mixed.checkpointed, sizes, variant_of(experiment, geometry), traces.expansions)
    return TimedStep(
        experiment=experiment,
        size=size,
        geometry=geometry,
        moved=moved_in_a_step(mixed, experiment, sizes, step),
        habits=asked.dialect.habits,
    )
