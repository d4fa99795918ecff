"""Which frames are taken at a frame rate, from timestamps alone."""

from fractions import Fraction

import pytest

from foretune.core.errors import UserError
from foretune.data.frame_rates import Timing, sampling_at

_MS = Fraction(1, 1000)


def _taken(times: list[int], fps: float, tick_s: Fraction = _MS) -> list[int]:
    timing = Timing(num_frames=len(times), span_s=(times[-1] - times[0]) * tick_s, tick_s=tick_s)
    sampling = sampling_at(fps, timing, "a.mkv")
    taken = list(sampling.pick(((time - times[0]) * tick_s, number) for number, time in enumerate(times)))
    assert len(taken) == sampling.num_frames(timing)
    return taken


def _rounded_ms(num_frames: int, rate_fps: float) -> list[int]:
    return [round(number * 1000 / rate_fps) for number in range(num_frames)]


@pytest.mark.parametrize("fps", [24, 12, 8, 6, 1])
@pytest.mark.parametrize("tick_s", [_MS, Fraction(1, 24), Fraction(1, 12288), Fraction(1, 600), Fraction(1, 100)])
def test_every_nth_frame_is_taken_whatever_timestamps_are_rounded_to(fps: int, tick_s: Fraction):
    times = [round(number / (24 * tick_s)) for number in range(49)]
    assert _taken(times, fps, tick_s) == list(range(0, 49, 24 // fps))


@pytest.mark.parametrize(("rate_fps", "fps"), [(24, 16), (30, 16), (60, 24), (25, 24)])
def test_the_frame_is_taken_that_is_shown_at_each_time(rate_fps: int, fps: int):
    times = [number * 1000 for number in range(2 * rate_fps)]
    taken = _taken(times, fps, Fraction(1, 1000 * rate_fps))
    assert taken == [number * rate_fps // fps for number in range(len(taken))]
    assert len(taken) == 2 * fps


@pytest.mark.parametrize(("rate_fps", "fps"), [(24000 / 1001, 24), (30000 / 1001, 30), (24, 24000 / 1001)])
def test_rates_that_mean_the_same_take_each_frame_once(rate_fps: float, fps: float):
    assert _taken(_rounded_ms(300, rate_fps), fps) == list(range(300))


def test_a_camera_that_is_early_and_late_has_each_frame_taken_once_at_its_own_rate():
    times = [time + early for time, early in zip(_rounded_ms(60, 30), [0, 5, -5, 4] * 15, strict=True)]
    assert _taken(times, 30) == list(range(60))


def test_a_long_pause_shows_its_frame_again_and_again():
    times = [0, 40, 80, 400, 440, 800, *range(840, 1200, 40)]
    assert _taken(times, 10)[:9] == [0, 2, 2, 2, 3, 4, 4, 4, 5]


@pytest.mark.parametrize("rate_fps", [24, 25, 30, 60])
def test_two_frames_are_enough_for_a_rate(rate_fps: int):
    assert _taken(_rounded_ms(2, rate_fps), rate_fps) == [0, 1]


def test_a_single_frame_is_taken_at_any_rate():
    assert _taken([700], 24) == [0]


def test_a_higher_rate_is_refused_with_the_video_s_own():
    with pytest.raises(UserError, match=r"a\.mkv has 23\.976 frames per second, fewer than data\.fps: 25, so frames"):
        _taken(_rounded_ms(1000, 24000 / 1001), 25)


def test_timestamps_that_do_not_advance_are_refused():
    with pytest.raises(UserError, match=r"a\.mkv has no usable timestamps"):
        _taken([5, 5, 5], 1)
