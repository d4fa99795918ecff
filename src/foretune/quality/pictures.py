"""Sample images of an evaluation: grids of the base and the run, and single images for a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from foretune.core.values.evaluation import SAMPLE_FOLDER, Column, sample_file
from foretune.quality.evidence import SampledEvidence
from foretune.training.sampling import Pixels, grid, to_image

_MOST_ROWS = 8
_MOST_SEEDS = 4
_LEAST_SIDE_PX = 96
"""Smaller images are enlarged, each pixel to a square, so that a person can see them."""
_MOST_SIDE_PX = 256
_GAP_PX = 4


def write_pictures(folder: Path, base: SampledEvidence | None, run: SampledEvidence) -> tuple[str, ...]:
    """Writes PNG files to a folder and returns their names: one row per prompt, one column per seed, the base first.

    Besides these grids, the first image of each shown prompt is saved separately, for the grid of a report.
    """
    if not run.samples:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    sheets = {"run.png": _rows(run)}
    if base is not None and base.samples:
        before_and_after = [(first[0], second[0]) for first, second in zip(base.samples, run.samples, strict=True)]
        sheets = {"base.png": _rows(base), **sheets, "before-and-after.png": before_and_after[:_MOST_ROWS]}
    for name, rows in sheets.items():
        grid([[_shown(image) for image in row] for row in rows], _GAP_PX).save(folder / name, optimize=True)
    _write_singles(folder, {"run": run} if base is None else {"base": base, "run": run})
    return tuple(sheets)


def _write_singles(folder: Path, found: Mapping[Column, SampledEvidence]) -> None:
    (folder / SAMPLE_FOLDER).mkdir(exist_ok=True)
    for old in (folder / SAMPLE_FOLDER).glob("*.png"):
        # From an earlier evaluation, which may have had more prompts.
        old.unlink()
    for column, evidence in found.items():
        for number, images in enumerate(evidence.samples[:_MOST_ROWS]):
            _at_most(to_image(images[0])).save(folder / sample_file(column, number), optimize=True)


def _rows(evidence: SampledEvidence) -> Sequence[Sequence[Pixels]]:
    return [images[:_MOST_SEEDS] for images in evidence.samples[:_MOST_ROWS]]


def _shown(pixels: Pixels) -> Image.Image:
    image = to_image(pixels)
    side = max(image.size)
    if side < _LEAST_SIDE_PX:
        times = -(-_LEAST_SIDE_PX // side)
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    return _at_most(image)


def _at_most(image: Image.Image) -> Image.Image:
    if max(image.size) > _MOST_SIDE_PX:
        image.thumbnail((_MOST_SIDE_PX, _MOST_SIDE_PX), Image.Resampling.LANCZOS)
    return image
