"""The cells of the matrix on the simulated GPU: each pair of values that goes together, families among the values."""

from collections.abc import Iterator
from functools import cache

from foretune.catalog import TRAINABLE
from foretune.choices.matrix import Cell, axes, refusals
from tests.matrix.cells import name_of
from tests.matrix.covering import Covering, cover
from tests.proofs.rotation import rows_of_turn

NOT_SIMULATED = frozenset({"compile", "cudnn", "paged-adamw8bit"})
"""Triton, cuDNN and CUDA's unified memory, which paged states are in, are not simulated."""
NUM_IN_TURN = 4

_MASKED = frozenset({"chroma", "hunyuan_video", "ltx_video", "lumina2", "mochi", "pixart", "qwen_image", "z_image"})
"""Families whose attention has a mask, which flash attention does not take."""
_HALF = ("bf16", "fp16")

FamilyCell = tuple[str, Cell]


@cache
def covering() -> Covering:
    """The first value of each of its cells is the family."""
    values = [tuple(value for value in axis if value not in NOT_SIMULATED) for axis in axes().values()]
    return cover([tuple(TRAINABLE), *values], cache(_is_supported))


def _is_supported(cell: Cell) -> bool:
    family, *rest = cell
    # What flash attention cannot compute is refused in the first step, when the model has been seen.
    precision, attention = (cell[1 + list(axes()).index(name)] for name in ("precision", "attention"))
    is_computed = attention != "flash" or (family not in _MASKED and precision.startswith(_HALF))
    return is_computed and not refusals(tuple(rest), family, "cuda")


def all_cells() -> list[FamilyCell]:
    return [(cell[0], cell[1:]) for cell in covering().cells]


def routine_cells(turn: int) -> list[FamilyCell]:
    """Cells of a turn and others, among which are each family, each method, precision and lever, and each base."""
    return rows_of_turn(all_cells(), _main_values, turn, NUM_IN_TURN)


@cache
def _main_values(cell: FamilyCell) -> frozenset[str]:
    family, values = cell
    by_axis = dict(zip(axes(), values, strict=True))
    return frozenset({family, *(f"{axis}: {by_axis[axis]}" for axis in ("precision", "quantized denoiser", "lever"))})


def names(cells: list[FamilyCell]) -> Iterator[str]:
    return (name_of(*cell) for cell in cells)
