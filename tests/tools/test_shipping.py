"""What ships is complete, small, of the catalogue's models, and what the step itself would give today."""

import random
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from foretune.core.values.recipes import Recipes
from foretune.core.values.step_trace import MARK, StepTrace
from foretune.core.vocabulary import MemoryPart, StepPhase
from foretune.planner.expansion import expand
from foretune.planner.streams import device_events
from foretune.trace.recipes import recipe_names, record_recipes
from foretune.trace.shipped import folder, geometries, read_trace, recipes, shipped_slugs
from foretune.trace.stamps import model_hash, sources_hash
from tests.tools.release_order import without_release_order
from tests.tools.slow_models import SLOW_MODELS
from tools.shipping import TraceJob, all_jobs, write_recipes

MOST_BYTES = 5_000_000


def content(trace: StepTrace) -> StepTrace:
    """A trace without what says when and with what it was made, and without an order that means nothing."""
    return without_release_order(trace).model_copy(update={"made_from": "", "made_with": {}})


def differences(made: StepTrace, shipped: StepTrace) -> list[str]:
    """What is unlike, field by field: a trace that differs on one machine only has to be explained from its message."""
    made_fields, shipped_fields = content(made).model_dump(), content(shipped).model_dump()
    unlike = [name for name in made_fields if made_fields[name] != shipped_fields[name]]
    versions = f"made with torch {shipped.made_with['torch']}, here {version('torch')}"
    return [f"{name} ({versions}): {_first_unlike(made_fields[name], shipped_fields[name])}" for name in unlike]


def _first_unlike(made: Any, shipped: Any) -> str:
    """The innermost pair of values that differ, and the path to it."""
    if isinstance(made, dict) and isinstance(shipped, dict) and made.keys() == shipped.keys():
        key = next(key for key in made if made[key] != shipped[key])
        return f"{key} > {_first_unlike(made[key], shipped[key])}"
    if isinstance(made, list | tuple) and isinstance(shipped, list | tuple) and len(made) == len(shipped):
        index = next(index for index, pair in enumerate(zip(made, shipped, strict=True)) if pair[0] != pair[1])
        return f"{index} > {_first_unlike(made[index], shipped[index])}"
    if isinstance(made, list | tuple) and isinstance(shipped, list | tuple):
        only_made = [item for item in made if item not in shipped][:3]
        only_shipped = [item for item in shipped if item not in made][:3]
        return f"{len(made)} of {len(shipped)}; only made: {only_made}; only shipped: {only_shipped}"
    return f"{made!r} instead of {shipped!r}"


@pytest.fixture(scope="module")
def jobs() -> dict[str, TraceJob]:
    return {job.slug: job for job in all_jobs()}


def test_everything_ships_and_nothing_else(jobs: dict[str, TraceJob]) -> None:
    assert set(shipped_slugs()) == set(jobs)
    assert sum(len(path.read_bytes()) for path in folder().iterdir() if path.is_file()) < MOST_BYTES


def test_every_trace_is_of_the_catalogues_model_and_knows_the_shapes_of_what_it_trains(
    jobs: dict[str, TraceJob],
) -> None:
    """Without shapes, an optimizer that treats rows and columns apart cannot be put into a step."""
    for slug, job in jobs.items():
        trace = read_trace(slug)
        assert trace is not None
        assert trace.made_from.split("-")[0] == model_hash(job.model), f"{slug} is of another configuration"
        assert {"torch", "diffusers"} <= set(trace.made_with)
        is_step = ".lora." in slug or ".full." in slug
        assert not is_step or MARK + "rows" in trace.categories, slug


def test_geometry_is_there_for_every_model(jobs: dict[str, TraceJob]) -> None:
    steps = {job.model for slug, job in jobs.items() if ".lora." in slug or ".full." in slug}
    assert steps <= set(geometries())


def test_there_is_a_recipe_for_every_optimizer_and_quantised_layer() -> None:
    assert {*recipes().updates, *recipes().layers} == set(recipe_names())


def test_recipes_made_again_are_the_same(proof_size: Callable[[int, int], int]) -> None:
    """Fails when an optimizer, a quantised layer or a library changed: python -m tools.shipping --remake.

    Which ones are made again changes with the code that makes them.
    """
    names = recipe_names()
    chosen = random.Random(sources_hash()).sample(names, proof_size(len(names), 4))
    made, shipped = record_recipes(chosen), recipes()
    assert len(made.updates) + len(made.layers) == len(chosen)
    stale = [name for name, update in made.updates.items() if update != shipped.updates[name]]
    stale += [name for name, layer in made.layers.items() if layer != shipped.layers[name]]
    assert stale == [], "recipes.json is not what this code records"


def test_only_missing_recipes_are_recorded(tmp_path: Path) -> None:
    shipped, path = recipes(), tmp_path / "recipes.json"
    # A recipe that no recording gives: it must stay as it is in the file.
    marked = {**shipped.updates, "lion.fp32": shipped.updates["adamw.fp32"]}
    fewer = {name: update for name, update in marked.items() if name != "adafactor.fp32"}
    path.write_text(Recipes(updates=fewer, layers=shipped.layers).model_dump_json())
    write_recipes(path, remake=False)
    assert Recipes.model_validate_json(path.read_bytes()) == Recipes(updates=marked, layers=shipped.layers)
    written = path.read_bytes()
    write_recipes(path, remake=False)
    assert path.read_bytes() == written


@pytest.mark.parametrize(
    "slug",
    [
        "flux.1-dev.full.bf16.checkpointed",
        "hunyuanvideo-1.5.full.bf16.checkpointed",  # some weights have no gradient
        "qwen-image.full.bf16.kept",
        "krea-2.full.bf16.checkpointed.bf16-weights",  # weights of two dtypes, which AdamW updates one after the other
    ],
)
def test_adamw_holds_a_temporary_of_every_weight_that_it_updates(slug: str) -> None:
    """On a GPU it works on lists of weights; the blocks that are not recorded count, too."""
    trace = read_trace(slug)
    assert trace is not None
    events = device_events(expand(trace, (1, 64, 16, 1)))
    sizes: dict[int, int] = {}
    live = most_bytes = gradients_bytes = 0
    for event in events:
        if event.category == MemoryPart.GRADIENTS:
            gradients_bytes += event.num_bytes
        elif event.category == MemoryPart.TEMPORARIES:
            live += event.num_bytes or -sizes[event.storage]
            sizes[event.storage] = event.num_bytes
            most_bytes = max(most_bytes, live if event.phase == StepPhase.OPTIMIZER else 0)
    # Of weights in two dtypes, the larger list counts.
    assert 0.95 * gradients_bytes < most_bytes < 1.01 * gradients_bytes


@pytest.mark.slow
def test_a_sample_made_again_is_the_same(
    jobs: dict[str, TraceJob], proof_size: Callable[[int, int], int], report_figure: Callable[[str], None]
) -> None:
    """Fails when step, model or library have changed what is allocated: python -m tools.shipping --remake.

    Which ones are made again changes with the code that makes them.
    """
    quick = [slug for slug in sorted(jobs) if not slug.startswith(SLOW_MODELS)]
    chosen = random.Random(sources_hash()).sample(quick, proof_size(20, 2))
    stale = []
    for slug in chosen:
        shipped = read_trace(slug)
        assert shipped is not None
        stale += [f"{slug}: {difference}" for difference in differences(jobs[slug].make(), shipped)]
    report_figure(f"{len(chosen)} of {len(jobs)} shipped traces made again: {len(stale)} differences")
    assert stale == []


def test_control_a_changed_trace_is_noticed() -> None:
    slug = next(iter(shipped_slugs()))
    shipped = read_trace(slug)
    assert shipped is not None
    larger = shipped.growths[0].model_copy(update={"terms": ((1.0, (0, 0, 0, 0)),)})
    changed = shipped.model_copy(update={"growths": (larger, *shipped.growths[1:])})
    assert content(changed) != content(shipped)


def test_the_order_of_releases_that_follow_each_other_does_not_count() -> None:
    shipped = read_trace("chroma.lora.bf16.checkpointed")
    assert shipped is not None
    outside = list(shipped.outside)
    index = next(
        index
        for index, (one, next_one) in enumerate(pairwise(outside))
        if next_one.released == one.released._replace(position=one.released.position + 1)
    )
    one, other = outside[index], outside[index + 1]
    outside[index : index + 2] = one._replace(released=other.released), other._replace(released=one.released)
    exchanged = shipped.model_copy(update={"outside": tuple(outside)})
    assert exchanged != shipped
    assert differences(exchanged, shipped) == []
    outside[index] = one._replace(released=one.released._replace(position=one.released.position - 20))
    earlier = shipped.model_copy(update={"outside": tuple(outside)})
    assert differences(earlier, shipped) != []
