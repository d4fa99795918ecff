"""Every choice on the simulated GPU: no race, no early read, no wrong device, and no wait that is not on the list."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.rotation import how_to_repeat, turn
from tests.simulated.cell_steps import mapping_on_gpu, run_steps
from tests.simulated.host_waits import differences
from tests.simulated.matrix_cells import FamilyCell, all_cells, names, routine_cells

pytestmark = [pytest.mark.proof, pytest.mark.simulated, pytest.mark.every_run]

EXECUTED = all_cells() if os.environ.get("FORETUNE_PROOFS") == "full" else routine_cells(turn())


@pytest.fixture(scope="module")
def g1_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of latents and captions for all cells."""
    return tmp_path_factory.mktemp("g1")


@pytest.fixture(scope="module", autouse=True)
def without_compiling() -> Iterator[None]:
    """bitsandbytes compiles its CPU kernels, which stand for those of CUDA here: minutes, for the same numbers."""
    import torch

    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.mark.parametrize(("family", "cell"), EXECUTED, ids=names(EXECUTED))
def test_g1_a_cell_trains_without_a_finding(
    family: str,
    cell: tuple[str, ...],
    simulated_gpu: Any,
    tiny_pipeline: Callable[..., Path],
    g1_work: Path,
) -> None:
    """Two steps: batches, forward, backward, clipping, update. The fixture fails on any finding of the device."""
    model = tiny_pipeline(family)
    steps = run_steps(mapping_on_gpu(cell, model, g1_work), model, simulated_gpu)
    assert steps.outcome.status == "finished", steps.outcome.reason
    for facts, waits in steps.by_step:
        assert not differences(facts, waits), "\n".join(differences(facts, waits))


def test_g1_at_least_150_cells_have_every_value(report_figure: Callable[[str], None]) -> None:
    report_figure(f"{len(EXECUTED)} of {len(all_cells())} cells executed ({how_to_repeat(turn())})")
    cells = all_cells()
    assert len(cells) >= 150
    assert {_name(cell) for number in range(3) for cell in routine_cells(number)} <= {_name(cell) for cell in cells}


def _name(cell: FamilyCell) -> str:
    return next(names([cell]))
