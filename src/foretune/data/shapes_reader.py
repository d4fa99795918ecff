"""Reads what an image of shapes shows from its pixels: finds the best-fitting drawing, in any colours.

Every shape of every size and style is compared at every position; for each, the two best colours follow by least
squares. The best positions are then refined to fractions of a pixel.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np
import numpy.typing as npt

from foretune.choices.data import ShapesStyle
from foretune.data.sources.shapes import COLOURS, SHAPES, SIZES, captions_shown, coverage, coverages, frame_coverage

ATTRIBUTES = ("shape", "size", "colour", "background")
STYLES: tuple[str, ...] = get_args(ShapesStyle)

_Floats = npt.NDArray[np.float64]
# Offsets for refinement around the best whole positions, in pixels.
_OFFSETS_PX = (-0.5, -0.25, 0.0, 0.25, 0.5)
_NUM_REFINED = 4
# Mean square difference of drawings due to rounding, for values from 0 to 1: no style is decided by less.
_ROUNDING = (1 / 255) ** 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadShape:
    """The best-fitting drawing of an image."""

    shape: str
    size: str
    colour: str
    background: str
    style: str
    residual: float
    """What the drawing does not explain: the mean squared difference as a share of the image's variance. 0 is a perfect
    drawing; 1 is no better than one colour.
    """

    @property
    def caption(self) -> str:
        """The sentence that describes the image."""
        return f"a {self.size} {self.colour} {self.shape} on {self.background}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    shape: str
    size: str
    style: str
    error: float
    """Mean squared difference over all pixels and colours."""
    colour: _Floats
    background: _Floats


_MOST_FOUND = 4096
_FOUND: dict[bytes, dict[str, _Fit]] = {}


def read_scene(pixels: npt.NDArray[np.generic]) -> ReadShape:
    """Reads a square image: bytes, or floats from 0 to 1; height x width x 3."""
    image = _as_floats(pixels)
    best = min(_fits(image).values(), key=lambda fit: fit.error)
    variance = float(image.var(axis=(0, 1)).mean())
    return ReadShape(
        shape=best.shape,
        size=best.size,
        colour=_nearest_colour(best.colour),
        background=_nearest_colour(best.background),
        style=best.style,
        residual=best.error / variance if variance > 0 else 1.0,
    )


def style_score(pixels: npt.NDArray[np.generic], style: str) -> float:
    """Returns how much better the style's best drawing fits than the best plain one: 1 is far better, 0 far worse, 0.5
    equal.

    It is the plain drawing's error as a share of both errors.
    """
    assert style in STYLES
    assert style != "plain", "plain is what a style is measured against"
    fits = _fits(_as_floats(pixels))
    plain, styled = fits["plain"].error + _ROUNDING, fits[style].error + _ROUNDING
    return plain / (plain + styled)


def matches(caption: str, reading: ReadShape) -> dict[str, bool]:
    """Returns which attributes of a caption like "a small red circle on blue" an image shows; ignores the style."""
    words = caption.split()
    assert caption in captions_shown("all"), f"no caption of shapes: {caption}"
    asked = {"size": words[1], "colour": words[2], "shape": words[3], "background": words[5]}
    return {name: getattr(reading, name) == asked[name] for name in ATTRIBUTES}


def _as_floats(pixels: npt.NDArray[np.generic]) -> _Floats:
    height, width, num_channels = pixels.shape
    assert height == width, "shapes are drawn on squares"
    assert num_channels == len(COLOURS["red"])
    floats: _Floats = pixels.astype(np.float64)
    return floats / 255 if pixels.dtype == np.uint8 else floats.clip(0, 1)


def _nearest_colour(colour: _Floats) -> str:
    distances = {name: float(np.square(colour - np.array(value) / 255).sum()) for name, value in COLOURS.items()}
    return min(distances, key=lambda name: distances[name])


def _fits(image: _Floats) -> dict[str, _Fit]:
    """Returns the best drawing of each style, cached for repeated calls with one image."""
    known = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
    if known not in _FOUND:
        if len(_FOUND) >= _MOST_FOUND:
            _FOUND.clear()
        _FOUND[known] = _search(image)
    return _FOUND[known]


def _search(image: _Floats) -> dict[str, _Fit]:
    size_px = len(image)
    best: dict[str, _Fit] = {}
    for style in STYLES:
        bank = _bank(size_px, style)
        errors = _errors_everywhere(image, bank)
        candidates = np.argsort(errors, axis=None)[: 16 * _NUM_REFINED]
        fits = [
            _refined(image, *bank.names[which], style, (x + 0.5, y + 0.5))
            for which, y, x in _spread(np.unravel_index(candidates, errors.shape))
        ]
        best[style] = min(fits, key=lambda fit: fit.error)
    return best


def _spread(places: tuple[npt.NDArray[np.intp], ...]) -> list[tuple[int, int, int]]:
    """Returns the best positions, at most two per drawing, so that close alternatives are compared too."""
    chosen: list[tuple[int, int, int]] = []
    for which, y, x in zip(*(axis.tolist() for axis in places), strict=True):
        if sum(which == other for other, _, _ in chosen) < 2 and len(chosen) < _NUM_REFINED:  # noqa: PLR2004
            chosen.append((which, y, x))
    return chosen


@dataclass(frozen=True, kw_only=True)
class _Bank:
    """All drawings of a style centred at pixel (0, 0), as Fourier transforms, with sums over their positions."""

    names: tuple[tuple[str, str], ...]
    """Shape and size."""
    weight: _Floats
    """Pixels to compare: of a framed image those inside the frame."""
    drawn: npt.NDArray[np.complex128]
    allowed: npt.NDArray[np.bool_]
    """Centres at which the drawing is inside the image."""
    sum_drawn: _Floats
    sum_squares: _Floats


@cache
def _bank(size_px: int, style: str) -> _Bank:
    inner = "plain" if style == "framed" else style
    names = tuple((shape, size) for shape in SHAPES for size in SIZES)
    middle_px = size_px // 2
    templates = [coverage(shape, size, inner, (middle_px + 0.5, middle_px + 0.5), size_px) for shape, size in names]
    drawn = np.stack([np.roll(template, (-middle_px, -middle_px), (0, 1)) for template in templates]).astype(np.float64)
    weight = 1 - frame_coverage(size_px).astype(np.float64) if style == "framed" else np.ones((size_px, size_px))
    at_px = np.arange(size_px) + 0.5
    allowed = []
    for _, size in names:
        # One pixel more than drawings need, because an edge may be blurred.
        inside = np.abs(at_px - size_px / 2) <= size_px / 2 - SIZES[size] * size_px + 1
        allowed.append(inside[:, None] & inside[None, :])
    transformed = np.fft.fft2(drawn)
    squares = np.fft.fft2(drawn * drawn)
    return _Bank(
        names=names,
        weight=weight,
        drawn=transformed,
        allowed=np.stack(allowed),
        sum_drawn=_correlated(transformed, weight),
        sum_squares=_correlated(squares, weight),
    )


def _correlated(transformed: npt.NDArray[np.complex128], plane: _Floats) -> _Floats:
    """Returns the sum of drawing times plane, for every drawing and position."""
    products: _Floats = np.fft.ifft2(np.conj(transformed) * np.fft.fft2(plane)).real
    return products


def _errors_everywhere(image: _Floats, bank: _Bank) -> _Floats:
    """Returns the residual sum of squares of each drawing at each position; drawing x row x column."""
    weight, total = bank.weight, bank.weight.sum()
    spread = bank.sum_squares - bank.sum_drawn**2 / total
    explained = np.zeros_like(spread)
    for channel in np.moveaxis(image, 2, 0):
        together = _correlated(bank.drawn, weight * channel) - bank.sum_drawn * (weight * channel).sum() / total
        explained += together**2 / np.maximum(spread, 1e-9)
    means = (weight[..., None] * image).sum((0, 1)) / total
    everything = (weight[..., None] * (image - means) ** 2).sum()
    return np.where(bank.allowed, everything - explained, np.inf)


def _refined(image: _Floats, shape: str, size: str, style: str, at_px: tuple[float, float]) -> _Fit:
    """Returns the drawing's best position near a pixel, and its colours there."""
    size_px = len(image)
    places_px = [(at_px[0] + dx, at_px[1] + dy) for dy in _OFFSETS_PX for dx in _OFFSETS_PX]
    masks = coverages(shape, size, style, places_px, size_px)
    errors, colours, backgrounds = _least_squares(image, masks)
    best = int(np.argmin(errors))
    return _Fit(
        shape=shape,
        size=size,
        style=style,
        error=float(errors[best]),
        colour=colours[best],
        background=backgrounds[best],
    )


def _least_squares(image: _Floats, masks: npt.NDArray[np.float32]) -> tuple[_Floats, _Floats, _Floats]:
    """Returns the mean squared error of each mask, and the colours inside and outside that minimise it."""
    flat = image.reshape(-1, image.shape[2])
    covered = masks.reshape(len(masks), -1).astype(np.float64)
    mean_covered = covered.mean(1, keepdims=True)
    means = flat.mean(0)
    centred = covered - mean_covered
    spread = np.maximum(np.square(centred).sum(1, keepdims=True), 1e-9)
    slopes = centred @ (flat - means) / spread
    explained = np.square(slopes) * spread
    errors = (np.square(flat - means).sum() - explained.sum(1)) / flat.size
    backgrounds = means - slopes * mean_covered
    return np.maximum(errors, 0.0), backgrounds + slopes, backgrounds
