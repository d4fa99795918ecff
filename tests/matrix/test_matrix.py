"""The capability matrix, executed: every pair of choices that goes together is in a cell that is really trained.

A cell is a family and one value of each axis. What no cell can hold is refused by name before anything is loaded.
"""

import os
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from foretune.choices.capabilities import TRAINABLE
from foretune.choices.matrix import Cell, axes, refusals
from foretune.core.errors import ExperimentErrors
from tests.matrix.covering import Covering, cover
from tests.matrix.running import NUM_STEPS, asked_of, run_cell

_COMPILED = "compile"
"""A compiled cell takes half a minute, so it has cells of its own instead of a pair with everything."""
_ROUTINE_SHARE = 10
"""A routine run executes one cell in so many, another fixed choice for each family; FORETUNE_PROOFS=full all."""


@cache
def covering(family: str) -> Covering:
    """Two tables, made from other draws: most pairs are in several cells, in other company each time."""
    values = [tuple(value for value in axis if value != _COMPILED) for axis in axes().values()]
    is_supported = cache(lambda cell: not refusals(cell, family, "cpu"))
    first, second = (cover(values, is_supported, seed) for seed in range(2))
    cells = list(dict.fromkeys((*first.cells, *second.cells)))
    return Covering(cells, [pair for pair in first.unsupported if pair in second.unsupported])


def compiled_cells(family: str) -> list[Cell]:
    """The usual cell and one with an adapter, half of its blocks computed again, both compiled."""
    usual = {name: next(iter(values)) for name, values in axes().items()}
    lora = {"method": "lora", "numbers": "bf16", "checkpointing": "half of the blocks"}
    found = [tuple({**usual, **changes, "lever": _COMPILED}.values()) for changes in ({}, lora)]
    return [cell for cell in found if not refusals(cell, family, "cpu")]


def executed() -> list[tuple[str, Cell]]:
    is_full = os.environ.get("FORETUNE_PROOFS") == "full"
    cells = []
    for family in TRAINABLE:
        cells += [(family, cell) for cell in covering(family).cells if is_full or _is_routine(family, cell)]
        cells += [(family, cell) for cell in compiled_cells(family)[: None if is_full else 0]]
    return cells


def _is_routine(family: str, cell: Cell) -> bool:
    return zlib.crc32("/".join((family, *cell)).encode()) % _ROUTINE_SHARE == 0


def name_of(family: str, cell: Cell) -> str:
    """What is not usual in it."""
    usual = [next(iter(values)) for values in axes().values()]
    return "-".join((family, *(value for value, normal in zip(cell, usual, strict=True) if value != normal)))


@pytest.mark.parametrize(("family", "cell"), executed(), ids=[f"matrix-{name_of(*each)}" for each in executed()])
def test_a_supported_cell_runs(
    family: str, cell: Cell, tiny_pipeline: Callable[..., Path], tmp_path: Path, matrix_cache: Path
) -> None:
    """Forward, backward, update, save, resume, export, reload."""
    (tmp_path / "cache").symlink_to(matrix_cache, target_is_directory=True)
    ran = run_cell(cell, tiny_pipeline(family), tmp_path)
    assert ran.trained.record.outcome.status == "finished", ran.trained.record.outcome.reason
    assert ran.trained.record.outcome.steps_done == NUM_STEPS
    assert ran.trained.num_changed_tensors > 0
    assert ran.trained.base_unchanged in (None, True)
    assert ran.resumed.record.outcome.status == "finished", ran.resumed.record.outcome.reason
    assert ran.num_different == 0, "a resumed run ends as the one that was not interrupted"
    assert ran.proof.holds, ran.proof


@pytest.mark.parametrize("family", TRAINABLE, ids=[f"matrix-{family}" for family in TRAINABLE])
def test_what_no_cell_holds_is_refused_by_name(
    family: str, tiny_pipeline: Callable[..., Path], tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    """Each unsupported pair, all else as usual: the error names one of the two and what to type."""
    found = covering(family)
    usual = [next(iter(values)) for values in axes().values()]
    options = list(axes().values())
    for pair in found.unsupported:
        chosen = dict(pair)
        cell = tuple(chosen.get(index, value) for index, value in enumerate(usual))
        with pytest.raises(ExperimentErrors) as refused:
            asked_of(cell, tiny_pipeline(family), tmp_path)
        keys = {key for index, value in pair for key in options[index][value]}
        assert any(key in str(refused.value) for key in keys), (pair, str(refused.value))
        assert "Nearest: " in str(refused.value), (pair, str(refused.value))
    report_figure(f"{family}: {len(found.unsupported)} pairs refused by name, {len(found.cells)} cells hold all others")
