"""What images show is read off their pixels; what shows nothing, or something else, is not."""

import numpy as np
import numpy.typing as npt
import pytest

from foretune.choices.data import ShapesStyle
from foretune.data.shapes_reader import ATTRIBUTES, STYLES, matches, read_scene, style_score
from foretune.data.sources.shapes import Shapes

Image = npt.NDArray[np.float64]


def blurred(image: Image) -> Image:
    """Each pixel mixed with its neighbours: half of itself, the rest of the four beside it."""
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
    beside = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    return 0.5 * image + 0.125 * beside


def share_read(source: Shapes, num: int, noise: float, *, blur: bool) -> tuple[float, float]:
    """Shares of images whose caption, and whose caption and style, were read."""
    generator = np.random.default_rng(0)
    captions_right = styles_right = 0
    for index in range(num):
        image = source.pixels(index) / 255
        image = (blurred(image) if blur else image) + noise * generator.normal(size=image.shape)
        reading = read_scene(image)
        is_right = reading.caption == source.info(index).caption
        captions_right += is_right
        styles_right += is_right and reading.style == source.style
    return captions_right / num, styles_right / num


@pytest.mark.parametrize("size_px", [32, 64])
@pytest.mark.parametrize("style", STYLES)
def test_images_are_read_right(style: ShapesStyle, size_px: int):
    captions_right, styles_right = share_read(
        Shapes(40, size_px, style=style), 40 if size_px == 32 else 20, noise=0.0, blur=False
    )
    assert captions_right >= 0.99
    assert styles_right >= 0.99


@pytest.mark.parametrize(("noise", "blur"), [(0.05, False), (0.02, True)])
def test_a_little_noise_or_blur_does_not_matter(noise: float, blur: bool):
    captions_right, _ = share_read(Shapes(60, 32), 60, noise=noise, blur=blur)
    assert captions_right >= 0.98


def test_bytes_and_floats_are_read_alike():
    pixels = Shapes(5, 32).pixels(3)
    assert read_scene(pixels).caption == read_scene(pixels.astype(np.float32) / 255).caption


def test_noise_shows_what_is_asked_by_chance_only():
    """The control: an image of nothing agrees with captions as often as lots that are drawn, one in hundreds."""
    generator, source = np.random.default_rng(0), Shapes(60, 32)
    readings = [read_scene(generator.random((32, 32, 3))) for _ in range(60)]
    right = [matches(source.info(index).caption, reading) for index, reading in enumerate(readings)]
    assert sum(all(each.values()) for each in right) <= 2
    assert min(reading.residual for reading in readings) > 0.5
    assert max(read_scene(source.pixels(index)).residual for index in range(20)) < 0.05


def test_captions_of_other_images_do_not_match():
    source = Shapes(80, 32)
    found = [matches(source.info((index + 7) % 80).caption, read_scene(source.pixels(index))) for index in range(80)]
    assert np.mean([all(each.values()) for each in found]) <= 0.05
    for name, num_values in zip(ATTRIBUTES, (4, 3, 8, 8), strict=True):
        assert np.mean([each[name] for each in found]) == pytest.approx(1 / num_values, abs=0.17)


@pytest.mark.parametrize("style", ["hollow", "halved", "framed"])
def test_a_style_scores_where_it_is_and_not_where_it_is_not(style: ShapesStyle):
    styled = [style_score(Shapes(20, 32, style=style).pixels(index), style) for index in range(12)]
    plain = [style_score(Shapes(20, 32).pixels(index), style) for index in range(12)]
    assert min(styled) > 0.8
    assert max(plain) < 0.2
