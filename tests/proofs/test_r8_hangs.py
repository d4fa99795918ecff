"""R8: one of two processes does not come to a collective. The run ends by itself, with the stacks of both."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.proofs.lost_ranks import TwoProcesses
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = pytest.mark.proof
_NOTICED_S = 15.0


@pytest.mark.takes_turns
def test_r8_a_collective_that_hangs_is_noticed_with_every_stack(
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: Callable[[int, int], int],
    report_figure: Callable[[str], None],
) -> None:
    is_full = os.environ.get("FORETUNE_PROOFS") == "full"
    # Beside other tests, a process that does not hang may need more than ten seconds.
    limit_s = 10.0 if is_full else 30.0
    noticed_s = []
    for number in range(proof_size(20, 1)):
        two = TwoProcesses(
            forked_python,
            tiny_pipeline("ddpm"),
            tmp_path / str(number),
            hangs_at=4,
            train={"steps": 20},
            parallel={"timeout_s": limit_s},
        )
        out, _ = two.process.communicate(timeout=HANG_S)
        assert two.process.returncode == 1, out
        record = two.run.read_record()
        assert record is not None
        assert record.outcome.status == "failed"
        reason = str(record.outcome.reason)
        assert f"did not answer for {limit_s:g} s" in reason
        assert str(two.run.path / "stacks") in reason
        waiting, hanging = ((two.run.path / "stacks" / f"process-{rank}.txt").read_text() for rank in (0, 1))
        assert "hang_before_the_collective" in hanging
        assert "hang_before_the_collective" not in waiting
        assert "in mean" in waiting
        two.wait_until_all_ended()
        noticed_s.append(two.events("ended")[-1]["time_s"] - float(two.sign.read_text()))
    report_figure(
        f"{len(noticed_s)} of {len(noticed_s)} hangs with a limit of {limit_s:g} s noticed with both stacks, "
        f"after {max(noticed_s):.1f} s at most"
    )
    if is_full:
        assert max(noticed_s) <= _NOTICED_S
