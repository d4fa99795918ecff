"""R7: one of two processes is killed, again and again. All start from the last checkpoint, as often as allowed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.proofs.killed_ranks import check_restarts

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.takes_turns]
_STEPS_FOR_EACH = 40
"""So many that no run is over before its process is found and killed."""


@pytest.mark.parametrize("is_allowed", [True, False])
def test_r7_killed_processes_start_again_as_often_as_allowed(
    is_allowed: bool,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: Callable[[int, int], int],
    report_figure: Callable[[str], None],
) -> None:
    figure = check_restarts(
        forked_python,
        tiny_pipeline("ddpm"),
        tmp_path,
        {},
        num_kills=proof_size(20, 1),
        num_steps_for_each=_STEPS_FOR_EACH,
        is_allowed=is_allowed,
    )
    report_figure(figure)
