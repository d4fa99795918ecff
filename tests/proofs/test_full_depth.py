"""A shipped trace, made from four blocks of each kind at small sizes, against the same step at full depth."""

import random
from collections.abc import Callable

import pytest

from foretune import catalog
from foretune.choices.step_form import StepForm
from foretune.models.locating import family_from_catalogue
from foretune.plan.expansion import expand
from foretune.plan.live_memory import CUDA_ROUNDING_BYTES, find_peak
from foretune.trace.probing import Probe
from foretune.trace.recorder import Allocation
from foretune.trace.shipped import read_trace
from foretune.trace.stamps import sources_hash
from foretune.trace.tracing import StepSizes, TracedStep, trace_step

MOST_APART = 0.005
RANK = 6


def peak_bytes(step: TracedStep) -> int:
    """The most live bytes, from the raw record."""
    live = peak = 0
    alive: dict[int, int] = {}
    for event in step.recording.events:
        if isinstance(event, Allocation):
            alive[event.number] = -(-event.num_bytes // CUDA_ROUNDING_BYTES) * CUDA_ROUNDING_BYTES
            live += alive[event.number]
            peak = max(peak, live)
        else:
            live -= alive.pop(event.number)
    return peak


def probe(name: str) -> Probe:
    """A size at which no trace was recorded: another batch, another side, other numbers of tokens and frames."""
    family = family_from_catalogue(name)
    text = family.own_text_tokens() if family.text_is_fixed or not family.own_text_tokens() else 160
    side_px = family.size_multiple_px() * 32
    sizes = StepSizes(
        batch_size=3,
        height_px=side_px,
        width_px=side_px,
        num_text_tokens=text,
        num_frames=13 if family.default_num_frames() > 1 else 1,
    )
    return Probe(sizes, RANK)


def distance(name: str, method: str, *, is_checkpointed: bool) -> float:
    """Extrapolated peak over the peak at full depth, less one."""
    form = StepForm(model=name, method=method, is_checkpointed=is_checkpointed)  # type: ignore[arg-type]
    shipped = read_trace(form.slug())
    assert shipped is not None, f"{form.slug()} does not ship"
    asked, family = probe(name), family_from_catalogue(name)
    experiment = form.experiment()
    if method == "lora":
        experiment = experiment.model_copy(update={"method": experiment.method.model_copy(update={"rank": RANK})})
    truth = peak_bytes(trace_step(experiment, family, asked.sizes, "cuda"))
    found = find_peak(expand(shipped, asked.in_trace(family)), CUDA_ROUNDING_BYTES, 0)
    return found.num_bytes / truth - 1


@pytest.mark.slow
def test_extrapolated_traces_are_those_of_full_depth(
    proof_size: Callable[[int, int], int], report_figure: Callable[[str], None]
) -> None:
    """All of them at full size; a few in a routine run, others whenever the step's code changes."""
    names = sorted(catalog.denoisers())
    chosen = random.Random(sources_hash()).sample(names, proof_size(len(names), 2))
    apart = {}
    for number, name in enumerate(chosen):
        # Each model with one of the four common forms, so that all four are met.
        method, is_checkpointed = ("lora", "full")[number % 2], number % 4 < 2
        apart[f"{name} {method} {'checkpointed' if is_checkpointed else 'kept'}"] = distance(
            name, method, is_checkpointed=is_checkpointed
        )
    worst = max(apart, key=lambda key: abs(apart[key]))
    report_figure(f"{len(apart)} of {len(names)} models at full depth: at most {apart[worst]:+.3%} apart ({worst})")
    assert {key: value for key, value in apart.items() if abs(value) > MOST_APART} == {}
