"""R4 on two simulated GPUs: a run that was stopped and resumed is, bit for bit, the run that was not, with weights,
states of the optimizer, averages and activations on the host or in shards, and saves in the background.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from foretune.record.run_directory import RunDirectory
from tests.conftest import ProofSize
from tests.proofs.ends import end_of
from tests.proofs.rotation import how_to_repeat, turn
from tests.simulated.ranks import SimulatedRanks
from tests.simulated.resumed_cells import CELLS, NUM_DEVICES, RESUMED_AFTER, STOPS, Cell
from tests.training.short_runs import events_of
from tests.turns import NUM_TURNS

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.simulated, pytest.mark.takes_turns]

_NUM_PARTS = 4
_LOSS_SCALES = {"full": 2.0**16, "lora": 2.0**19, "lora-dropout": 2.0**19}
"""Where gradients of the tiny models overflow now and then: the scale moves, and most steps are made."""


@pytest.fixture(scope="module")
def two(forked_python: "ForkedPython") -> Iterator[SimulatedRanks]:
    with SimulatedRanks(NUM_DEVICES, forked=forked_python) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the models have encoded, for all cells."""
    return str(tmp_path_factory.mktemp("cache"))


def differences(cell: Cell, two: SimulatedRanks, model: Path, cache: str, work: Path) -> list[str]:
    """What differs between the stopped and the uninterrupted run; nothing should."""
    request: dict[str, Any] = {"do": "trained", "mapping": cell.experiment(str(model), cache)}
    if cell.precision == "fp16":
        request["loss_scale"] = _LOSS_SCALES[cell.method]
    answers = two.together({**request, "runs": str(work / "whole")})
    for stops in STOPS[cell.stop]:
        answers += two.together(
            {**request, "runs": str(work / "stopped")}, {rank: dict(stop) for rank, stop in stops.items()}
        )
        request["resume"] = str(_run_in(work / "stopped").path)
    answers += two.together(request)
    whole, stopped = _run_in(work / "whole"), _run_in(work / "stopped")
    found = [str(answer) for answer in answers if answer["findings"] or "refused" in answer]
    first_steps = tuple(event["first_step"] for event in events_of(stopped, "started"))
    if first_steps != (0, *RESUMED_AFTER[cell.stop]):
        found.append(f"it began after the steps {first_steps}")
    return found + end_of(whole).differences(end_of(stopped))


def _run_in(runs: Path) -> RunDirectory:
    (path,) = (path for path in runs.glob("*/*") if not path.is_symlink())
    return RunDirectory.open(path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_NUM_PARTS))
def test_r4_resume_of_two_processes_is_bit_exact(
    part: int,
    two: SimulatedRanks,
    cache: str,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    cells = CELLS[part::_NUM_PARTS]
    # A test that takes turns runs in every twelfth, each time with the next cell.
    place = turn() // NUM_TURNS % len(cells)
    chosen = cells[: proof_size(len(cells), 0)] or cells[place : place + 1]
    found = {
        cell: differences(cell, two, tiny_pipeline(cell.family), cache, tmp_path / str(number))
        for number, cell in enumerate(chosen)
    }
    different = {cell: parts for cell, parts in found.items() if parts}
    report_figure(
        f"{len(chosen) - len(different)} of {len(chosen)} cells on two simulated GPUs bit-exact after a resume, of "
        f"{len(CELLS)} in {_NUM_PARTS} parts ({how_to_repeat(turn())})"
    )
    assert different == {}


def test_r4_cells_hold_every_pair_of_choices() -> None:
    columns = [list(dict.fromkeys(column)) for column in zip(*(cell.values() for cell in CELLS), strict=True)]
    possible = [cell for cell in (Cell(*values) for values in itertools.product(*columns)) if cell.is_possible()]
    assert len(set(CELLS)) == len(CELLS) >= 20
    assert all(cell.is_possible() for cell in CELLS)
    assert _pairs(possible) == _pairs(CELLS)


def _pairs(cells: "tuple[Cell, ...] | list[Cell]") -> set[tuple[tuple[int, str], ...]]:
    return {pair for cell in cells for pair in itertools.combinations(enumerate(cell.values()), 2)}
