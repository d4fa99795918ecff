"""Motion and flicker of clips made by hand."""

import numpy as np
import pytest

from foretune.quality.motion import Motion, mean_change
from foretune.training.sampling import Pixels
from tests.quality.made import MadeData, in_groups, made_setting, noise_images


def ramp(step: float, num_frames: int = 6) -> Pixels:
    """A clip that becomes brighter by the same step from frame to frame."""
    levels = np.arange(num_frames, dtype=np.float32) * step
    return np.broadcast_to(levels[:, None, None, None], (num_frames, 8, 8, 3))


def test_a_still_clip_has_neither_and_even_movement_has_no_flicker() -> None:
    assert (mean_change(ramp(0.0), 1), mean_change(ramp(0.0), 2)) == (0.0, 0.0)
    assert mean_change(ramp(0.1), 1) == pytest.approx(0.1)
    assert mean_change(ramp(0.1), 2) == pytest.approx(0.0, abs=1e-6)


def test_frames_that_alternate_flicker_at_most() -> None:
    clip = np.stack([np.full((8, 8, 3), frame % 2, dtype=np.float32) for frame in range(5)])
    assert (mean_change(clip, 1), mean_change(clip, 2)) == (1.0, 2.0)


def test_noise_has_more_of_both_than_a_ramp() -> None:
    noise = np.stack(noise_images(6, size_px=8))
    # The mean distance of two uniform numbers is a third.
    assert mean_change(noise, 1) == pytest.approx(1 / 3, abs=0.03)
    assert mean_change(noise, 2) > 5 * mean_change(ramp(0.1), 1)


def test_scores_of_clips_stand_beside_those_of_held_out_clips() -> None:
    setting = made_setting(data=MadeData(held_out_images=[ramp(0.02), ramp(0.06)]), num_frames=6, num_seeds=2)
    metric = Motion()
    assert metric.why_absent(setting) is None
    motion, flicker = metric.measure(setting, in_groups([ramp(0.1), ramp(0.2), ramp(0.0), ramp(0.0)], 2), None)
    assert motion.metric == "motion"
    assert [pytest.approx(group, abs=1e-6) for group in ((0.1, 0.2), (0.0, 0.0))] == list(motion.groups)
    assert motion.numbers.bands is not None
    assert motion.numbers.bands["held-out clips"] == pytest.approx(0.04)
    assert [value for group in flicker.groups for value in group] == pytest.approx([0.0] * 4, abs=1e-6)


def test_images_and_clips_of_two_frames_are_too_short() -> None:
    assert Motion().why_absent(made_setting()) == "the model makes images, not clips"
    assert "too short" in (Motion().why_absent(made_setting(num_frames=2)) or "")
