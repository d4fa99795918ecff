"""Steps that are recorded when they are needed."""

from collections.abc import Callable
from pathlib import Path

from foretune.choices.step_form import StepForm
from foretune.models.locating import family_from_catalogue, open_family
from foretune.trace.live import LiveTraces
from foretune.trace.probing import probes
from foretune.trace.tracing import StepSizes

SIZES = StepSizes(batch_size=1, height_px=64, width_px=64, num_text_tokens=16)


def test_progress_counts_the_recordings_and_a_kept_trace_needs_none(
    tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    reported: list[tuple[str, int, int]] = []
    form = StepForm(model="tiny", method="full")
    for _ in range(2):
        live = LiveTraces(open_family(tiny_pipeline("flux")), tmp_path, lambda *progress: reported.append(progress))
        live(form, SIZES, rank=4)
    # Base, batch, image, and one that checks: text has one length, and there is no rank.
    assert reported == [(form.slug(), number, 4) for number in (1, 2, 3, 4)]


def test_a_caption_of_one_length_needs_one_recording_less() -> None:
    family = family_from_catalogue("flux.1-dev")
    assert len(probes(family, has_rank=True)) == 5
    assert len(probes(family, has_rank=True, num_text_tokens=512)) == 4


def test_no_recording_is_larger_than_the_model_allows(tiny_pipeline: Callable[..., Path]) -> None:
    family = open_family(tiny_pipeline("sd3"))
    most_px = family.max_resolution_px()
    assert most_px == 24 * family.size_multiple_px()
    sides_px = {probe.sizes.height_px for probe in probes(family, has_rank=True)}
    assert len(sides_px) == 3
    assert max(sides_px) < most_px
    released = family_from_catalogue("sd3-medium")
    assert {probe.sizes.height_px // 16 for probe in probes(released, has_rank=True)} == {8, 24, 40}


def test_a_step_of_a_model_with_a_largest_side(tiny_pipeline: Callable[..., Path]) -> None:
    form = StepForm(model="tiny", method="lora")
    trace = LiveTraces(open_family(tiny_pipeline("sd3")))(form, SIZES, rank=4)
    assert trace.outside
