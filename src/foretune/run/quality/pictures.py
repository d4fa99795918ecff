"""Sample grids of an evaluation: the base's, the run's, and both side by side."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from foretune.run.quality.evidence import Evidence
from foretune.run.sampling import Pixels, grid, to_image

_MOST_ROWS = 8
_MOST_SEEDS = 4
_LEAST_SIDE_PX = 96
"""Smaller images are shown larger, each pixel as a square, so that a person sees something."""
_MOST_SIDE_PX = 256
_GAP_PX = 4


def write_pictures(folder: Path, base: Evidence | None, run: Evidence) -> tuple[str, ...]:
    """PNG files in a folder, by name: one row a prompt, one column a seed; side by side, the base first."""
    if not run.samples:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    sheets = {"run.png": _rows(run)}
    if base is not None and base.samples:
        before_and_after = [(first[0], second[0]) for first, second in zip(base.samples, run.samples, strict=True)]
        sheets = {"base.png": _rows(base), **sheets, "before-and-after.png": before_and_after[:_MOST_ROWS]}
    for name, rows in sheets.items():
        grid([[_shown(image) for image in row] for row in rows], _GAP_PX).save(folder / name, optimize=True)
    return tuple(sheets)


def _rows(evidence: Evidence) -> Sequence[Sequence[Pixels]]:
    return [images[:_MOST_SEEDS] for images in evidence.samples[:_MOST_ROWS]]


def _shown(pixels: Pixels) -> Image.Image:
    image = to_image(pixels)
    side = max(image.size)
    if side < _LEAST_SIDE_PX:
        times = -(-_LEAST_SIDE_PX // side)
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    if side > _MOST_SIDE_PX:
        image.thumbnail((_MOST_SIDE_PX, _MOST_SIDE_PX), Image.Resampling.LANCZOS)
    return image
