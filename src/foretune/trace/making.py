"""Makes a StepTrace from recordings of the step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version

import torch

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm, rank_is_a_size
from foretune.choices.training import Levers
from foretune.core.registry import Registry
from foretune.core.values.step_trace import StepTrace
from foretune.core.vocabulary import StepPhase
from foretune.models.family import Family
from foretune.step.levers.offloading import leaving_leaves
from foretune.step.quantizing.applying import Backend, quantizing_with
from foretune.trace.blocks import kinds_of_units, units_of
from foretune.trace.operator_memo import OperatorMemo
from foretune.trace.probing import Probe, probes, shallow
from foretune.trace.program import MANY_BLOCKS, BlockRun, IrregularStep, block_runs, build_program
from foretune.trace.timeline import timeline
from foretune.trace.tracing import Numerics, StepSizes, TracedStep, trace_step
from foretune.trace.work import total_work

OnRecording = Callable[[int, int], None]
"""Called before each recording with its number, from 1, and the total."""

_MADE_WITH = ("torch", "diffusers", "transformers", "peft")
_AUTOGRAD = "foretune.trace.torchao_autograd"
TORCHAO_AUTOGRAD: Registry[Backend] = Registry(
    "quantisation",
    {
        "int8": f"{_AUTOGRAD}:AutogradInt8Linear",
        "float8": f"{_AUTOGRAD}:AutogradFloat8Linear",
        "float8-dynamic": f"{_AUTOGRAD}:AutogradDynamicFloat8Linear",
    },
)
"""Layers that torchao's own autograd differentiates, by quantisation."""


def _silent(number: int, total: int) -> None:
    """Reports no progress."""


@contextmanager
def habits_of(form: StepForm) -> Iterator[None]:
    """The context in which to record a form that differs from what experiments can express."""
    with ExitStack() as stack:
        if form.habits.leaves_stay:
            stack.enter_context(leaving_leaves())
        if form.habits.torchao_autograd:
            stack.enter_context(quantizing_with(TORCHAO_AUTOGRAD))
        yield


def make_step_trace(
    experiment: Experiment,
    family: Family,
    numerics: Numerics,
    *,
    num_text_tokens: int | None = None,
    on_recording: OnRecording = _silent,
) -> StepTrace:
    """Returns a trace for every size and depth, from a few recordings of small sizes.

    With `num_text_tokens` it is valid for captions of that length only, and takes one recording less.
    """
    has_rank = rank_is_a_size(experiment.method)
    asked = probes(family, has_rank=has_rank, num_text_tokens=num_text_tokens)
    return _made_shallow(experiment, family, asked, numerics, on_recording)


def make_point_trace(
    experiment: Experiment,
    family: Family,
    sizes: StepSizes,
    rank: int,
    numerics: Numerics,
    on_recording: OnRecording = _silent,
) -> StepTrace:
    """Returns a trace for exactly these sizes, from one recording."""
    return _made_shallow(experiment, family, [Probe(sizes, rank)], numerics, on_recording)


def _made_shallow(
    experiment: Experiment, family: Family, asked: Sequence[Probe], numerics: Numerics, on_recording: OnRecording
) -> StepTrace:
    """Records a few blocks of each kind, or a few more if a tensor is passed on across several blocks."""
    levers = experiment.levers
    try:
        return _made(experiment, family, asked, numerics, shallow(family, levers), on_recording)
    except IrregularStep:
        if not family.block_kinds():
            raise
        return _made(experiment, family, asked, numerics, shallow(family, levers, MANY_BLOCKS), on_recording)


def _made(
    experiment: Experiment,
    family: Family,
    asked: Sequence[Probe],
    numerics: Numerics,
    recorded: Family,
    on_recording: OnRecording,
) -> StepTrace:
    memo = OperatorMemo()
    steps: list[TracedStep] = []
    for number, probe in enumerate(asked, start=1):
        on_recording(number, len(asked))
        steps.append(trace_step(with_rank(experiment, probe.rank), recorded, probe.sizes, numerics, memo=memo))
    runs = runs_of(family, steps[0], experiment.levers)
    lines = [timeline(step) for step in steps]
    sizes = [probe.in_trace(recorded) for probe in asked]
    # One recording is valid for its own sizes, whatever the model does at others.
    per_sample = family.goes_by_samples and len(asked) > 1
    program = build_program(lines, sizes, runs, per_sample=per_sample)
    work, host_operators = total_work(runs, steps, sizes, per_sample=per_sample)
    phases = lines[0].phases
    return StepTrace(
        model=experiment.model,
        method=experiment.method.kind,
        precision=experiment.train.precision,
        checkpointing=experiment.levers.gradient_checkpointing,
        numerics=numerics,
        phases=phases,
        backward_phases=tuple(index for index, name in enumerate(phases) if name == StepPhase.BACKWARD),
        categories=tuple(program.categories),
        growths=tuple(program.growths),
        outside=program.outside,
        kinds=program.kinds,
        work=work,
        host_operators=host_operators,
        made_with=versions(),
        made_from="",
    )


def versions() -> dict[str, str]:
    """Returns the versions of the packages that determine a step."""
    return {name: version(name) for name in _MADE_WITH}


def with_rank(experiment: Experiment, rank: int) -> Experiment:
    """Returns the experiment with another rank, if the rank is one of its sizes."""
    if not rank_is_a_size(experiment.method):
        return experiment
    return experiment.model_copy(update={"method": experiment.method.model_copy(update={"rank": rank})})


def runs_of(family: Family, shallow_step: TracedStep, levers: Levers) -> tuple[BlockRun, ...]:
    """Returns how often each kind of block occurs in the full-depth model."""
    full = kinds_of_units(units_of(family, family.denoiser_on_meta(torch.bfloat16), levers))
    return block_runs(shallow_step.block_kinds, full)
