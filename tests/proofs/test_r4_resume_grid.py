"""R4: a run that was stopped and resumed is, bit for bit, the run that was not.

On a GPU some sums have no fixed order. There the same cells run with torch's deterministic algorithms and attention
composed of products.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.ends import end_of
from tests.proofs.partial_counts import PartialCounts
from tests.proofs.resume_cells import CELLS, NUM_STEPS_PER_EPOCH, RESUMED_AFTER, Cell
from tests.proofs.rotation import how_to_repeat, rows_of_turn, turn
from tests.proofs.stopping import Stopper, dying_in_window, go_on, restless_scaler, start

pytestmark = [pytest.mark.proof, pytest.mark.takes_turns]

_NUM_CELLS_IN_TURN = 7
"""A routine run takes so many, others each day, and a few more until every value of every choice is in one of them."""
_NUM_CELLS_WITH_ALL_PAIRS = 42


def cells_of_turn(number: int) -> list[Cell]:
    return rows_of_turn(CELLS, lambda cell: set(enumerate(cell.values())), number, _NUM_CELLS_IN_TURN)


def stop_and_resume(cell: Cell, experiment: dict[str, object], runs: Path) -> RunDirectory:
    """The run of a cell, interrupted as it says, until its end."""
    match cell.stop:
        case "asked-mid-epoch":
            run = start(experiment, runs, Stopper(ask_after=1))
        case "asked-at-epoch-end":
            run = start(experiment, runs, Stopper(ask_after=NUM_STEPS_PER_EPOCH))
        case "dies-after-step":
            run = start(experiment, runs, Stopper(die_after=4))
        case "dies-in-window":
            with dying_in_window(step=3, micro=1):
                run = start(experiment, runs)
        case "twice":
            run = start(experiment, runs, Stopper(ask_after=NUM_STEPS_PER_EPOCH))
            go_on(run, Stopper(die_after=5))
        case _:
            raise AssertionError(cell.stop)
    go_on(run)
    return run


@contextmanager
def sums_in_a_fixed_order() -> Iterator[None]:
    """Without it, a healthy GPU adds up gradients in another order each time, and no two runs are alike."""
    # cuBLAS reads the variable once; torch looks for it in each product.
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def differences(cell: Cell, models: TinyModels, folder: Path, device: str) -> list[str]:
    """What differs between the interrupted and the uninterrupted run of a cell; nothing should."""
    experiment = cell.experiment(str(models.path(cell.family)), str(models.cache), device)
    # Where gradients of the tiny models overflow: the first steps are skipped, so the optimizer's state is empty.
    scaler = restless_scaler(2.0**18 if cell.method == "full" else 2.0**22)
    with scaler, sums_in_a_fixed_order() if device == "cuda" else nullcontext():
        whole = start(experiment, folder / "whole")
        stopped = stop_and_resume(cell, experiment, folder / "stopped")
    _, _, effective = stopped.read_experiment()
    assert effective["num_steps_per_epoch"] == NUM_STEPS_PER_EPOCH
    first_steps = [event["first_step"] for event in read_events(stopped.events) if event["kind"] == "started"]
    # An accelerator reports its steps late, so it is asked to stop late.
    if tuple(first_steps) != (0, *RESUMED_AFTER[cell.stop]) and device == "cpu":
        return [f"it began after the steps {first_steps}"]
    return end_of(whole).differences(end_of(stopped))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["flux", "sd3", "ddpm"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_r4_resume_is_bit_exact(
    family: str,
    device: str,
    tiny_models: TinyModels,
    tmp_path: Path,
    partial_counts: PartialCounts,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    chosen = CELLS if proof_size(1, 0) else cells_of_turn(turn())
    cells = [cell for cell in chosen if cell.family == family]
    found = {}
    for number, cell in enumerate(cells):
        count = partial(differences, cell, tiny_models, tmp_path / str(number), device)
        found[cell] = partial_counts.part(" ".join(cell.values()), count)
    partial_counts.forget()
    different = {cell: parts for cell, parts in found.items() if parts}
    report_figure(
        f"{len(cells) - len(different)} of {len(cells)} cells of {family} on {device} bit-exact after a resume "
        f"({len(chosen)} cells in all three families; {how_to_repeat(turn())})"
    )
    assert different == {}


class _Started(Exception):
    """Raised in the place of a training."""


@pytest.mark.parametrize(("device", "is_fixed"), [("cpu", False), ("cuda", True)])
def test_cells_on_a_gpu_add_in_a_fixed_order(
    device: str, is_fixed: bool, tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = []

    def noted(*_: object) -> NoReturn:
        settings.append((torch.are_deterministic_algorithms_enabled(), not torch.backends.cuda.flash_sdp_enabled()))
        raise _Started

    monkeypatch.setattr(sys.modules[__name__], "start", noted)
    with pytest.raises(_Started):
        differences(CELLS[0], tiny_models, tmp_path, device)
    assert settings == [(is_fixed, is_fixed)]
    assert not torch.are_deterministic_algorithms_enabled()


def test_r4_table_covers_what_meets(report_figure: Callable[[str], None]) -> None:
    all_values = [list(dict.fromkeys(column)) for column in zip(*(cell.values() for cell in CELLS), strict=True)]
    possible = [cell.values() for cell in (Cell(*v) for v in itertools.product(*all_values)) if cell.is_possible()]
    values, pairs = _meeting(possible, 1), _meeting(possible, 2)
    triples = _meeting(possible, 3)
    in_all = _meeting([cell.values() for cell in CELLS], 3)
    turns = [cells_of_turn(number) for number in range(-(-len(CELLS) // _NUM_CELLS_IN_TURN))]
    routine = [cell.values() for cell in cells_of_turn(turn())]
    report_figure(
        f"{len(set(CELLS))} cells; the {len(routine)} of a routine run hold {len(_meeting(routine, 2))} of "
        f"{len(pairs)} pairs of choices, all of them {len(in_all & triples)} of {len(triples)} triples"
    )
    assert len(set(CELLS)) == len(CELLS) >= 80
    assert all(cell.is_possible() for cell in CELLS)
    for cells in turns:
        assert values == _meeting([cell.values() for cell in cells], 1)
        assert len(cells) <= 10
    assert {cell for cells in turns for cell in cells} == set(CELLS)
    assert pairs == _meeting([cell.values() for cell in CELLS[:_NUM_CELLS_WITH_ALL_PAIRS]], 2)
    assert triples == in_all


def _meeting(rows: list[tuple[str, ...]], num: int) -> set[tuple[tuple[int, ...], tuple[str, ...]]]:
    columns = list(itertools.combinations(range(len(rows[0])), num))
    return {(chosen, tuple(row[i] for i in chosen)) for row in rows for chosen in columns}
