"""The capability matrix on two processes: each value with DDP and with FSDP2, trained or refused by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from foretune.catalog import TRAINABLE
from foretune.choices.matrix import Cell, axes, refusals
from foretune.core.errors import ExperimentErrors
from foretune.record.run_directory import RunDirectory
from foretune.training.exporting import export
from foretune.training.reload_check import check
from tests.matrix.cells import name_of, usual_cell
from tests.matrix.running import NUM_STEPS, as_if_killed_after_the_first_step, asked_of, mapping_of, num_different
from tests.proofs.rotation import how_to_repeat, turn
from tests.training.rank_runs import run_ranks

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

Row = tuple[str, str, Cell]
"""Family, sharding and cell."""
_NUM_IN_TURN = 4


def parallel_of(sharding: str) -> dict[str, Any]:
    return {"device": "cpu", "devices": 2, "sharding": sharding}


def rows() -> tuple[list[Row], list[Row]]:
    """Each value with all else as usual: those that run, each in a family that supports it alone, and the refused."""
    found: list[Row] = []
    refused: list[Row] = []
    usual, families = usual_cell(), tuple(TRAINABLE)
    singles = dict.fromkeys(
        (*usual[:index], value, *usual[index + 1 :]) for index, axis in enumerate(axes().values()) for value in axis
    )
    for number, single in enumerate(singles):
        # Families take turns, so that each engine meets all of them. What full fine-tuning cannot do, an adapter may.
        first = number % len(families)
        turned = (*families[first:], *families[:first])
        tried = [(family, cell) for cell in (single, ("lora", *single[1:])) for family in turned]
        supported = next((one for one in tried if not refusals(one[1], one[0], "cpu")), None)
        if supported is None:
            continue  # refused on one process, too
        family, cell = supported
        for sharding in ("none", "full"):
            is_refused = refusals(cell, family, "cpu", {"parallel": parallel_of(sharding)})
            (refused if is_refused else found).append((family, sharding, cell))
    return found, refused


RUN, REFUSED = rows()
_FIRST = turn() * _NUM_IN_TURN
EXECUTED = (
    RUN
    if os.environ.get("FORETUNE_PROOFS") == "full"
    else [RUN[place % len(RUN)] for place in range(_FIRST, _FIRST + _NUM_IN_TURN)]
)


def row_name(row: Row) -> str:
    family, sharding, cell = row
    return f"{'DDP' if sharding == 'none' else 'FSDP2'}-{name_of(family, cell)}"


@pytest.mark.parametrize("row", EXECUTED, ids=map(row_name, EXECUTED))
def test_a_cell_runs_on_two_processes(
    row: Row,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    matrix_cache: Path,
    forked_python: "ForkedPython",
) -> None:
    """Trained, resumed from its first checkpoint to the same bits, exported and reloaded."""
    family, sharding, cell = row
    (tmp_path / "cache").symlink_to(matrix_cache, target_is_directory=True)
    mapping = {**mapping_of(cell, tiny_pipeline(family), tmp_path), "parallel": parallel_of(sharding)}
    trained = run_ranks(forked_python.python, 2, "trained", mapping=mapping, runs=str(tmp_path / "runs"))
    for one in trained:
        assert (one["status"], one["steps_done"]) == ("finished", NUM_STEPS), one["reason"]
        assert one["num_changed"]
        assert one["base_unchanged"] in (None, True)
    run = RunDirectory.open(Path(trained[0]["run"]))
    again = as_if_killed_after_the_first_step(run, tmp_path)
    resumed = run_ranks(forked_python.python, 2, "trained", resume=str(again.path))
    assert [one["status"] for one in resumed] == ["finished", "finished"], resumed[0]["reason"]
    assert num_different(run, again) == 0
    assert export(run, tmp_path / "exported", reload=check).proof.holds


def test_what_two_processes_cannot_do_is_refused_by_name(
    tiny_pipeline: Callable[..., Path], tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    for family, sharding, cell in REFUSED:
        with pytest.raises(ExperimentErrors) as refused:
            asked_of(cell, tiny_pipeline(family), tmp_path, parallel=parallel_of(sharding))
        assert "Nearest: " in str(refused.value), (cell, str(refused.value))
    report_figure(
        f"{len(RUN)} cells run on two processes, {len(REFUSED)} are refused by name; {len(EXECUTED)} executed "
        f"({how_to_repeat(turn())})"
    )
    assert len(RUN) > len(REFUSED)
