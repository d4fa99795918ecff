"""R1 and R7 on two simulated GPUs: processes of a run are killed, both or one of them, while weights and the state of
the optimizer are on the host or in shards.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ProofSize
from tests.proofs.killed_ranks import check_restarts, killed_runs
from tests.simulated.engines import ENGINES

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.simulated, pytest.mark.slow, pytest.mark.takes_turns]

_NUM_KILLS: dict[str, tuple[int, int]] = {
    "DDP, block swap": (17, 2),
    "DDP, bf16 weights": (16, 1),
    "FSDP2": (17, 2),
}
"""At full size, and in a tenth of it."""
_STEPS_FOR_EACH = 20
"""Of a run for each kill: so many that none is over before its process is found and killed."""


@pytest.mark.parametrize("engine", list(ENGINES))
def test_r1_two_processes_killed_together_end_as_if_never_killed(
    engine: str,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    seen = killed_runs(
        forked_python,
        tiny_pipeline("flux"),
        tmp_path,
        ENGINES[engine],
        num_kills=proof_size(*_NUM_KILLS[engine]),
        num_steps=proof_size(24, 8),
    )
    report_figure(f"{engine}, on two simulated GPUs: {seen.figure()}")
    assert seen.torn == []
    assert seen.different == []


@pytest.mark.parametrize(("engine", "is_allowed"), [("DDP, block swap", True), ("FSDP2", False)])
def test_r7_killed_processes_start_again_as_often_as_allowed(
    engine: str,
    is_allowed: bool,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    figure = check_restarts(
        forked_python,
        tiny_pipeline("flux"),
        tmp_path,
        ENGINES[engine],
        num_kills=proof_size(20, 1),
        num_steps_for_each=_STEPS_FOR_EACH,
        is_allowed=is_allowed,
    )
    report_figure(f"{engine}, on two simulated GPUs: {figure}")
