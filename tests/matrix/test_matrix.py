"""The capability matrix, executed: every pair of choices that goes together is in a cell that is really trained.

A cell is a family and one value of each axis. What no cell can hold is refused by name before anything is loaded.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.catalog import TRAINABLE
from foretune.choices.matrix import Cell, axes
from foretune.core.errors import ExperimentErrors
from tests.matrix.cells import NUM_IN_TURN, all_cells, covering, name_of, routine_cells, usual_cell
from tests.matrix.page import PAGE, page, without_run
from tests.matrix.running import NUM_STEPS, asked_of, run_cell
from tests.proofs.rotation import how_to_repeat, turn

EXECUTED = list(all_cells()) if os.environ.get("FORETUNE_PROOFS") == "full" else routine_cells(turn())
"""All with FORETUNE_PROOFS=full; otherwise about 20 that change each day, with every value and every family."""


@pytest.mark.parametrize(("family", "cell"), EXECUTED, ids=[f"matrix-{name_of(*each)}" for each in EXECUTED])
def test_a_supported_cell_runs(
    family: str, cell: Cell, tiny_pipeline: Callable[..., Path], tmp_path: Path, matrix_cache: Path
) -> None:
    """Forward, backward, update, save, resume, export, reload."""
    (tmp_path / "cache").symlink_to(matrix_cache, target_is_directory=True)
    ran = run_cell(cell, tiny_pipeline(family), tmp_path)
    assert ran.trained.record.outcome.status == "finished", ran.trained.record.outcome.reason
    assert ran.trained.record.outcome.steps_done == NUM_STEPS
    assert ran.trained.num_changed_tensors
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
    options = list(axes().values())
    for pair in found.unsupported:
        chosen = dict(pair)
        cell = tuple(chosen.get(index, value) for index, value in enumerate(usual_cell()))
        with pytest.raises(ExperimentErrors) as refused:
            asked_of(cell, tiny_pipeline(family), tmp_path)
        keys = {key for index, value in pair for key in options[index][value]}
        assert any(key in str(refused.value) for key in keys), (pair, str(refused.value))
        assert "Nearest: " in str(refused.value), (pair, str(refused.value))
    report_figure(f"{family}: {len(found.unsupported)} pairs refused by name, {len(found.cells)} cells hold all others")


def test_routine_cells_have_every_value_and_family_and_meet_all_cells_in_turn(
    report_figure: Callable[[str], None],
) -> None:
    report_figure(f"{len(EXECUTED)} cells executed ({how_to_repeat(turn())})")
    cells = [(family, cell) for family, cell in all_cells() if "compile" not in cell]
    every = {one for family, cell in cells for one in (family, *enumerate(cell))}
    turns = [routine_cells(number) for number in range(len(cells) // NUM_IN_TURN + 1)]
    for taken in turns[:3]:
        assert {one for family, cell in taken for one in (family, *enumerate(cell))} == every
        assert len(taken) < 30
    values = {(family, *place) for family, cell in cells for place in enumerate(cell)}
    in_a_week = [each for taken in turns[: len(TRAINABLE)] for each in taken]
    assert {(family, *place) for family, cell in in_a_week for place in enumerate(cell)} == values
    assert {each for taken in turns for each in taken} == set(cells)


def test_matrix_page_is_that_of_these_cells() -> None:
    """A new choice, cell or refusal is on the page only after a run of all cells."""
    assert without_run(PAGE.read_text(encoding="utf-8")) == without_run(page(set(all_cells()), "")), (
        "FORETUNE_PROOFS=full python -m pytest -n 2 tests/matrix writes the page"
    )


def test_matrix_page_names_what_failed() -> None:
    first, *others = all_cells()
    assert name_of(*first) in page(set(others), "")
    assert f"{len(others)} of {len(others) + 1} cells passed" in page(set(others), "")
