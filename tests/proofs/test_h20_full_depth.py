"""H20: a shipped trace, made from four blocks of each kind at small sizes, against the same step at full depth."""

from collections.abc import Callable

import pytest

from foretune import catalog
from foretune.choices.step_form import StepForm
from foretune.models.locating import family_from_catalogue
from foretune.planner.block_events import CUDA_ROUNDING_BYTES
from foretune.planner.expansion import expand
from foretune.planner.live_memory import find_peak
from foretune.trace.probing import Probe
from foretune.trace.recorder import Allocation
from foretune.trace.shipped import read_trace
from foretune.trace.tracing import StepSizes, TracedStep, trace_step
from tests.conftest import ProofSize
from tests.proofs.rotation import how_to_repeat, places, turn

pytestmark = [pytest.mark.proof, pytest.mark.slow]

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


def cell(place: int, names: list[str]) -> tuple[str, str, bool]:
    """One model after the other, each with the next of the four common forms, and with another one the next time."""
    rounds, position = divmod(place, len(names))
    form = (position + rounds) % 4  # whatever the number of models is
    return names[position], ("lora", "full")[form % 2], form < 2


def test_h20_extrapolated_traces_are_those_of_full_depth(
    proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    """All models at full size; two in a routine run, the next two in the next turn."""
    names, number = sorted(catalog.denoisers()), turn()
    apart = {}
    for place in places(number, proof_size(len(names), 2)):
        name, method, is_checkpointed = cell(place, names)
        apart[f"{name} {method} {'checkpointed' if is_checkpointed else 'kept'}"] = distance(
            name, method, is_checkpointed=is_checkpointed
        )
    worst = max(apart, key=lambda key: abs(apart[key]))
    which = "all" if len(apart) == len(names) else ", ".join(apart)
    report_figure(
        f"{len(apart)} of {len(names)} models at full depth ({which}): at most {apart[worst]:+.3%} apart ({worst}); "
        f"{how_to_repeat(number)}"
    )
    assert {key: value for key, value in apart.items() if abs(value) > MOST_APART} == {}


def test_h20_every_model_and_form_gets_its_turn() -> None:
    """Two in a turn meet all models in half as many turns, and each with all four forms in four times that."""
    names = sorted(catalog.denoisers())
    num_turns = -(-len(names) // 2)
    met = [cell(place, names) for number in range(4 * num_turns) for place in places(20_000 + number, 2)]
    assert {name for name, _, _ in met[: 2 * num_turns]} == set(names)
    assert len(set(met)) == 4 * len(names)
    # At full size all models in one turn, and all forms in four.
    whole = [cell(place, names) for number in range(4) for place in places(20_000 + number, len(names))]
    assert {name for name, _, _ in whole[: len(names)]} == set(names)
    assert len(set(whole)) == 4 * len(names)
