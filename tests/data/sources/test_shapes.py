"""Generated images show what their captions say, and the same at each asking."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from foretune.choices.data import ShapesCaptions, ShapesData, ShapesStyle
from foretune.data.buckets import Bucket
from foretune.data.sources import open_source
from foretune.data.sources.base import Source
from foretune.data.sources.shapes import COLOURS, SHAPES, SIZES, Shapes, captions_shown
from tests.work_counts import work_of


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


@pytest.mark.parametrize("num_samples", [10**4, 10**6, 10**9])
def test_a_billion_are_as_little_work_as_ten_thousand(num_samples: int):
    def use() -> Source:
        source = open_source(ShapesData(kind="shapes", num_samples=num_samples), largest=Bucket(48, 48))
        assert source.pixels(num_samples - 1).shape == (48, 48, 3)
        assert len(source) == num_samples
        assert source.fingerprint()
        return source

    source = use()  # the first use may import
    work = work_of(use)
    assert work.num_calls < 1000
    assert work.peak_bytes < 10**6
    with pytest.raises(IndexError):
        source.pixels(num_samples)


# Of 300 images at 32 px before there were styles and held-out captions: pixels, captions and fingerprints.
PLAIN_AND_ALL = "de3aa47a9484f01d"


def test_plain_images_of_all_captions_are_what_they_were_before_there_were_others():
    source, digest = Shapes(300, 32), hashlib.sha256()
    for index in range(300):
        digest.update(source.pixels(index).tobytes())
        digest.update((source.info(index).fingerprint + source.info(index).caption).encode())
    digest.update(source.fingerprint().encode())
    assert digest.hexdigest()[:16] == PLAIN_AND_ALL


@pytest.mark.parametrize("style", ["hollow", "halved", "framed"])
def test_a_style_changes_the_pixels_and_the_fingerprints_but_not_the_captions(style: ShapesStyle):
    plain, styled = Shapes(60, 32), Shapes(60, 32, style=style)
    for index in range(60):
        assert plain.info(index).caption == styled.info(index).caption
        assert plain.info(index).fingerprint != styled.info(index).fingerprint
        changed = np.abs(plain.pixels(index).astype(int) - styled.pixels(index)).max(axis=2) > 20
        assert 0.005 < changed.mean() < 0.4
    assert plain.fingerprint() != styled.fingerprint()


def test_a_tenth_of_the_captions_is_never_seen():
    every, seen, unseen = set(captions_shown("all")), set(captions_shown("seen")), set(captions_shown("unseen"))
    assert (len(every), len(unseen)) == (672, 67)
    assert seen | unseen == every
    assert not seen & unseen
    shows: tuple[tuple[ShapesCaptions, set[str]], ...] = (("seen", seen), ("unseen", unseen))
    for which, allowed in shows:
        source = Shapes(3000, 32, captions=which)
        shown = {source.info(index).caption for index in range(3000)}
        assert shown <= allowed
        assert len(shown) > 0.9 * len(allowed)
    # Every word is met in training, also of captions that are not.
    words = {word for caption in seen for word in caption.split()}
    assert {word for caption in unseen for word in caption.split()} <= words


def test_an_experiment_asks_for_style_and_captions():
    choice = ShapesData(kind="shapes", num_samples=20, style="framed", captions="unseen")
    source = open_source(choice, largest=Bucket(32, 32))
    assert source.fingerprint() == Shapes(20, 32, style="framed", captions="unseen").fingerprint()


def test_in_the_middle_is_within_a_sixteenth_of_it():
    anywhere, middle = Shapes(200, 32), Shapes(200, 32, placement="middle")
    for index in range(200):
        scene = middle.scene(index)
        assert max(abs(scene.centre_x - 0.5), abs(scene.centre_y - 0.5)) <= 1 / 16
        assert scene.caption == anywhere.scene(index).caption
    assert anywhere.fingerprint() != middle.fingerprint()
    assert max(abs(anywhere.scene(index).centre_x - 0.5) for index in range(200)) > 0.2
