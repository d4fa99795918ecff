"""R13: at every moment of many saves with rotation there is a checkpoint on the disk that can be trusted."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from foretune.training.checkpoint_files import DamagedCheckpoint, verify
from tests.conftest import ProofSize
from tests.proofs.fork_server import Child, ForkServer
from tests.waiting import HANG_S

pytestmark = pytest.mark.proof

_NUM_OPERATIONS = 20
"""At least so many file operations has a save that removes an older one."""


@dataclass
class Seen:
    """What was on the disk before each file operation of every save but the first."""

    num_looks: int = 0
    num_unfinished: int = 0
    """Looks that found a folder which was being written or removed."""
    num_without_checkpoint: int = 0
    num_damaged: int = 0
    most: int = 0
    """Most checkpoints that were there at once."""


@pytest.mark.parametrize("keep", [1, 2])
def test_r13_there_is_always_a_verified_checkpoint(
    keep: int, fork_server: ForkServer, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num_saves = proof_size(200, 20)
    seen = _watched(fork_server, tmp_path, num_saves, keep, removes_first=False)
    report_figure(
        f"{num_saves} saves that keep {keep}: looked at before each of {seen.num_looks} file operations "
        f"({seen.num_unfinished} with an unfinished folder), "
        f"{seen.num_without_checkpoint} without a verified checkpoint, {seen.num_damaged} damaged ones"
    )
    assert seen.num_without_checkpoint == 0
    assert seen.num_damaged == 0
    # The new one is there before the oldest goes.
    assert seen.most <= keep + 1
    assert seen.num_looks >= _NUM_OPERATIONS * (num_saves - keep)
    assert seen.num_unfinished > seen.num_looks / 2


def test_r13_control_removing_first_is_seen(
    fork_server: ForkServer, tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    seen = _watched(fork_server, tmp_path, num_saves=10, keep=1, removes_first=True)
    report_figure(
        f"control: a writer that removes first has no checkpoint in {seen.num_without_checkpoint} of "
        f"{seen.num_looks} looks"
    )
    assert seen.num_without_checkpoint > 0


def _watched(server: ForkServer, directory: Path, num_saves: int, keep: int, *, removes_first: bool) -> Seen:
    """Lets a process save that stops itself before each file operation, and looks at the disk there."""
    seen = Seen()
    child = server.start(
        "tests.proofs.rotating:save_many",
        directory=str(directory),
        num_saves=num_saves,
        keep=keep,
        removes_first=removes_first,
    )
    is_first = True
    while _stands_still(child):
        # Until the first is committed there is none.
        is_first = is_first and not any(directory.glob("step-*"))
        if not is_first:
            _look(directory, seen)
        child.send(signal.SIGCONT)
    assert child.wait() == 0, f"see {server.log}"
    return seen


def _stands_still(child: Child) -> bool:
    """Waits until the process has stopped itself; False if it has ended instead."""
    process, end_s = psutil.Process(child.pid), time.monotonic() + HANG_S
    while time.monotonic() < end_s:
        status = process.status()
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            return bool(status == psutil.STATUS_STOPPED)
        time.sleep(0.0002)
    raise AssertionError("it neither stops nor ends")


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
    seen.num_unfinished += any(directory.glob(".*"))
    seen.num_without_checkpoint += num_good == 0
    seen.most = max(seen.most, len(found))
