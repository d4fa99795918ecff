"""Fits how a number of bytes grows with the sizes, from a few probes, and checks it on one more."""

from collections.abc import Sequence

from foretune.core.units import MIB
from foretune.core.values.step_trace import Growth, Powers

Sizes = tuple[int, int, int, int]

_EXACT = 1e-9
# A padded convolution has (side + 1) squared elements: nearly, but not quite, proportional to the positions.
_NEARLY = 0.03
# Position tables grow with the sides, or with a frame, but not with all tokens. They are too small to matter.
_SMALL_BYTES = 32 * MIB


class IrregularGrowth(Exception):
    """Raised if a number does not grow in any of the known ways."""


def fit(probes: Sequence[Sizes], values: Sequence[float]) -> Growth:
    """Returns the growth through all probes.

    The first probe is the base; others change batch and rank, or the image, or the text. Bytes are products of a
    tensor's dimensions, so a dependence is a factor (batch, rank), a sum of image and text tokens, or the square of
    such a sum. Probes that change more than that check the result.
    """
    base, value = probes[0], float(values[0])
    changed: dict[int, tuple[int, float]] = {}
    factor = [0, 0, 0, 0]
    for probe, other in zip(probes[1:], values[1:], strict=True):
        differing = {axis for axis in range(4) if probe[axis] != base[axis]}
        if differing and differing <= {0, 3}:
            powers = _powers(base, value, probe, float(other))
            for axis in differing:
                factor[axis] = powers[axis]
        elif len(differing) == 1:
            axis = differing.pop()
            changed.setdefault(axis, (probe[axis], float(other)))
    scale = base[0] ** factor[0] * base[3] ** factor[3]
    for squared in (False, True):
        growth = _tokens(base, value / scale, changed, scale, factor, squared=squared)
        if growth is not None and all(_close(growth.at(p), v) for p, v in zip(probes, values, strict=True)):
            return growth
    growth = _tokens(base, value / scale, changed, scale, factor, squared=False)
    is_near = growth is not None and all(_close(growth.at(p), v, _NEARLY) for p, v in zip(probes, values, strict=True))
    if growth is not None and (is_near or max(values) <= _SMALL_BYTES):
        return growth
    raise IrregularGrowth(f"{list(values)} at {list(probes)}")


def for_each_sample(growth: Growth) -> Growth:
    """Returns the growth for a batch from that for one sample: what grows with the tokens exists for each sample."""
    if not any(image or text for _, (_, image, text, _) in growth.terms):
        return growth
    return Growth(terms=tuple((c, (batch + 1, image, text, rank)) for c, (batch, image, text, rank) in growth.terms))


def _powers(base: Sizes, value: float, probe: Sizes, other: float) -> Powers:
    """Returns whether batch and rank are factors; the probes are chosen so that each case has a different ratio."""
    for batch, rank in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if _close(other * base[0] ** batch * base[3] ** rank, value * probe[0] ** batch * probe[3] ** rank):
            return batch, 0, 0, rank
    raise IrregularGrowth(f"{value} at {base}, {other} at {probe}")


def _tokens(
    base: Sizes,
    value: float,
    changed: dict[int, tuple[int, float]],
    scale: int,
    factor: list[int],
    *,
    squared: bool,
) -> Growth | None:
    """Fits constant + a * image + b * text, or its square, times the factors of batch and rank."""
    root = value**0.5 if squared else value
    slopes = {}
    for axis in (1, 2):
        if axis in changed:
            size, other = changed[axis]
            other_root = (other / scale) ** 0.5 if squared else other / scale
            slopes[axis] = (other_root - root) / (size - base[axis])
    constant = root - sum(slope * base[axis] for axis, slope in slopes.items())
    parts: dict[tuple[int, int], float] = {(0, 0): constant, (1, 0): slopes.get(1, 0.0), (0, 1): slopes.get(2, 0.0)}
    if squared:
        if not slopes or all(abs(slope) < _EXACT for slope in slopes.values()):
            return None
        products: dict[tuple[int, int], float] = {}
        for (i, j), a in parts.items():
            for (k, m), b in parts.items():
                products[(i + k, j + m)] = products.get((i + k, j + m), 0.0) + a * b
        parts = products
    largest = max(abs(part) for part in parts.values())
    terms: list[tuple[float, Powers]] = [
        (_rounded(part), (factor[0], image, text, factor[3]))
        for (image, text), part in sorted(parts.items())
        if abs(part) > _EXACT * max(largest, 1.0)
    ]
    return Growth(terms=tuple(terms))


def _rounded(number: float) -> float:
    """Removes rounding errors of division: coefficients are products of integers."""
    nearest = round(number * 4096) / 4096
    return nearest if _close(nearest, number) else number


def _close(a: float, b: float, share: float = 1e-6) -> bool:
    return abs(a - b) <= share * max(abs(a), abs(b), 1.0)
