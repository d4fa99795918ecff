"""R13: at every moment of many saves with rotation there is a checkpoint on the disk that can be trusted."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from foretune.run.checkpoints import DamagedCheckpoint, verify
from tests.conftest import ProofSize
from tests.proofs.fork_server import Child, ForkServer

pytestmark = pytest.mark.proof

_MOST_BETWEEN_LOOKS_S = 0.008
_LIMIT_S = 30.0


@dataclass
class Seen:
    """What was on the disk whenever the saving process was held still."""

    num_looks: int = 0
    num_during_save: int = 0
    num_without_checkpoint: int = 0
    num_damaged: int = 0
    most: int = 0
    """Most checkpoints that were there at once."""


@pytest.mark.parametrize("keep", [1, 2])
def test_r13_there_is_always_a_verified_checkpoint(
    keep: int, fork_server: ForkServer, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num_saves = proof_size(200, 40)
    seen = _watched(fork_server, tmp_path, num_saves, keep, removes_first=False)
    report_figure(
        f"{num_saves} saves that keep {keep}: {seen.num_looks} looks ({seen.num_during_save} during a save), "
        f"{seen.num_without_checkpoint} without a verified checkpoint, {seen.num_damaged} damaged ones"
    )
    assert seen.num_without_checkpoint == 0
    assert seen.num_damaged == 0
    # The new one is there before the oldest goes.
    assert seen.most <= keep + 1
    assert seen.num_during_save > 0


def test_r13_control_removing_first_is_seen(
    fork_server: ForkServer, tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    seen = _watched(fork_server, tmp_path, num_saves=40, keep=1, removes_first=True)
    report_figure(
        f"control: a writer that removes first has no checkpoint in {seen.num_without_checkpoint} of "
        f"{seen.num_looks} looks"
    )
    assert seen.num_without_checkpoint > 0


def _watched(server: ForkServer, directory: Path, num_saves: int, keep: int, *, removes_first: bool) -> Seen:
    """Lets a process save, holds it still at random moments and looks at the disk."""
    rng, seen = random.Random(f"r13 {keep} {removes_first}"), Seen()
    child = server.start(
        "tests.proofs.saving:save_many",
        directory=str(directory),
        num_saves=num_saves,
        keep=keep,
        removes_first=removes_first,
    )
    while not any(directory.glob("step-*")):
        assert child.poll() is None, f"see {server.log}"
        time.sleep(0.001)
    while child.poll() is None:
        time.sleep(rng.uniform(0, _MOST_BETWEEN_LOOKS_S))
        if _held_still(child):
            _look(directory, seen)
            child.send(signal.SIGCONT)
    assert child.poll() == 0, f"see {server.log}"
    return seen


def _held_still(child: Child) -> bool:
    """Stops the process; False if it has ended instead."""
    child.send(signal.SIGSTOP)
    end_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < end_s:
        status = psutil.Process(child.pid).status()
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            return bool(status == psutil.STATUS_STOPPED)
    raise AssertionError("it does not stop")


def _look(directory: Path, seen: Seen) -> None:
    found = sorted(directory.glob("step-*"))
    num_good = 0
    for path in found:
        try:
            verify(path)
            num_good += 1
        except DamagedCheckpoint:
            seen.num_damaged += 1
    seen.num_looks += 1
    seen.num_during_save += any(directory.glob(".*"))
    seen.num_without_checkpoint += num_good == 0
    seen.most = max(seen.most, len(found))
