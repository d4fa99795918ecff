"""Traces that are recorded again are compared with those that they replace, and only what lacks shapes is chosen."""

from dataclasses import replace

from foretune.core.values.step_trace import Growth, StepTrace
from foretune.core.vocabulary import MemoryPart
from foretune.trace.shipped import read_trace
from tools.same_memory import memory_differences
from tools.shipping import TraceJob, without_shapes

SLUG = "sd3-medium.lora.bf16.checkpointed"


def shipped(slug: str = SLUG) -> StepTrace:
    trace = read_trace(slug)
    assert trace is not None
    return trace


def test_shapes_change_no_memory() -> None:
    trace = shipped()
    assert memory_differences(trace, trace.model_copy(update={"work": (), "made_from": "another"})) == ()


def test_a_larger_storage_is_reported_with_its_phase_and_bytes() -> None:
    trace = shipped()
    index = next(s.growth for s in trace.outside if trace.categories[s.category] == MemoryPart.FROZEN_WEIGHTS)
    growths = list(trace.growths)
    growths[index] = Growth(terms=((2**30, (0, 0, 0, 0)),))
    found = memory_differences(trace, trace.model_copy(update={"growths": tuple(growths)}))
    assert any(text.startswith("step at (1, 1024, 77, 4)") for text in found)
    assert any(text.startswith("forward at") for text in found)


def test_only_traces_without_shapes_are_chosen_and_lokr_comes_last() -> None:
    def job(slug: str, model: str = "sd3-medium") -> TraceJob:
        return TraceJob(model, slug, shipped)

    slugs = ("sd3-medium.lokr.none", "sd3-medium.full.none", SLUG, "flux.1-dev.sample.bf16")
    # Those that do not ship have no shapes either; a denoiser that samples never has.
    assert [one.slug for one in without_shapes(map(job, slugs))] == ["sd3-medium.full.none", "sd3-medium.lokr.none"]
    untrainable = replace(job("auraflow.full.none"), model="auraflow")
    assert [one.slug for one in without_shapes([untrainable, *map(job, slugs[:2])])] == [
        "sd3-medium.full.none",
        "auraflow.full.none",
        "sd3-medium.lokr.none",
    ]
