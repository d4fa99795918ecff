"""R7: one of two processes is killed, again and again. All start from the last checkpoint, as often as allowed."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.proofs.lost_ranks import TwoProcesses
from tests.training.short_runs import losses_of
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.takes_turns]
_BACK_S = 30.0
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
    num_kills = proof_size(20, 1)
    restarts = num_kills if is_allowed else num_kills - 1
    sections: dict[str, Any] = {"train": {"steps": _STEPS_FOR_EACH * (num_kills + 1)}, "save": {"every": 2}}
    two = TwoProcesses(forked_python, tiny_pipeline("ddpm"), tmp_path, parallel={"restarts": restarts}, **sections)
    killed_s, saved = [], []
    for kill in range(num_kills):
        saved.append(two.wait_for_save_of_start(kill + 1))
        # The first process owns the run directory; both must be losable.
        two.worker((kill + (not is_allowed)) % 2).kill()
        killed_s.append(time.time())
    out, _ = two.process.communicate(timeout=HANG_S)
    two.wait_until_all_ended()
    starts = two.events("started")
    assert len(starts) == restarts + 1, out
    firsts = [event["first_step"] for event in starts]
    assert firsts[0] == 0
    # The last kill is not followed by a start where no more are allowed.
    assert all(first >= step > 0 for first, step in zip(firsts[1:], saved, strict=False)), (firsts, saved)
    if not is_allowed:
        assert two.process.returncode == 1
        assert f"foretune resume {two.run.path}" in out.replace("\n", "")
        return
    assert two.process.returncode == 0, out
    steps = [event["step"] for event in two.events("step")]
    assert set(steps) == set(range(_STEPS_FOR_EACH * (num_kills + 1)))
    back_s = [start["time_s"] - last_s for start, last_s in zip(starts[1:], killed_s, strict=True)]
    report_figure(f"{num_kills} kills: back after {max(back_s):.1f} s at most, 0 processes left behind")
    if os.environ.get("FORETUNE_PROOFS") == "full":
        assert max(back_s) <= _BACK_S
    whole = TwoProcesses(forked_python, tiny_pipeline("ddpm"), tmp_path / "whole", **sections)
    whole.process.communicate(timeout=HANG_S)
    by_step = {event["step"]: event["loss"] for event in two.events("step")}
    assert [by_step[step] for step in sorted(by_step)] == losses_of(whole.run), "as if nothing had happened"
