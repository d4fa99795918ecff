"""Generated images show what their captions say, and the same at each asking."""

import time
from collections import Counter

import numpy as np
import pytest

from foretune.choices.data import ShapesData
from foretune.data.sources import open_source
from foretune.data.sources.shapes import COLOURS, SHAPES, SIZES, Shapes


@pytest.mark.parametrize("size_px", [32, 64, 200])
def test_the_caption_names_what_the_pixels_show(size_px: int):
    source = Shapes(200, size_px)
    for index in range(200):
        scene, pixels = source.scene(index), source.pixels(index)
        size, colour, shape = source.info(index).caption.removeprefix("a ").split(" on ")[0].split()
        background = source.info(index).caption.split(" on ")[1]
        centre = pixels[int(scene.centre_y * size_px), int(scene.centre_x * size_px)]
        assert tuple(centre) == COLOURS[colour]
        assert colour != background
        # How much of the image is covered, by the area of the shape that the caption names.
        half_px = SIZES[size] * size_px
        area_px = {"circle": np.pi, "square": 4, "triangle": 2, "cross": 20 / 9}[shape] * half_px**2
        towards = np.array(COLOURS[colour], float) - COLOURS[background]
        covered = ((pixels - np.array(COLOURS[background], float)) @ towards / (towards @ towards)).sum()
        # A border of half a pixel's doubt.
        assert covered == pytest.approx(area_px, abs=2 + 0.06 * 8 * half_px)


def test_a_shape_at_another_size_is_the_same_scene_drawn_again():
    small, large = Shapes(50, 32), Shapes(50, 96)
    for index in range(50):
        assert small.info(index).caption == large.info(index).caption
        shrunk = large.pixels(index).reshape(32, 3, 32, 3, 3).mean((1, 3))
        assert np.abs(shrunk - small.pixels(index)).mean() < 2


def test_images_follow_from_the_index_alone():
    one, other = Shapes(10, 32), Shapes(1000, 32)
    for index in range(10):
        assert np.array_equal(one.pixels(index), other.pixels(index))
        assert one.info(index) == other.info(index)
    assert one.fingerprint() != other.fingerprint()
    assert one.fingerprint() != Shapes(10, 64).fingerprint()
    assert one.fingerprint() == Shapes(10, 32).fingerprint()


def test_everything_occurs_about_equally_often():
    scenes = [Shapes(4000).scene(index) for index in range(4000)]
    for names, values in (
        (SHAPES, Counter(scene.shape for scene in scenes)),
        (tuple(SIZES), Counter(scene.size for scene in scenes)),
        (tuple(COLOURS), Counter(scene.colour for scene in scenes)),
        (tuple(COLOURS), Counter(scene.background for scene in scenes)),
    ):
        assert set(values) == set(names)
        assert min(values.values()) > 0.75 * 4000 / len(names)


def test_edges_are_smooth():
    source = Shapes(40, 64)
    index = next(index for index in range(40) if source.scene(index).shape == "circle")
    assert len(np.unique(source.pixels(index).reshape(-1, 3), axis=0)) > 8


def test_a_billion_are_as_quick_as_ten():
    began_s = time.perf_counter()
    source = open_source(ShapesData(kind="shapes", num_samples=1_000_000_000), resolution_px=48)
    assert source.pixels(999_999_999).shape == (48, 48, 3)
    assert len(source) == 10**9
    assert source.fingerprint()
    assert time.perf_counter() - began_s < 1
    with pytest.raises(IndexError):
        source.pixels(10**9)
