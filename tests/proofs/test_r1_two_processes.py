"""R1 with two processes: all are killed together at random moments and resumed; the run ends as if never killed."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from foretune.record.run_directory import RunDirectory
from tests.conftest import ProofSize
from tests.proofs.ends import end_of, hashes_of
from tests.proofs.killing import newest_run, torn_files
from tests.proofs.lost_ranks import TwoProcesses
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

_NUM_STEPS = 24
_LONGEST_S = 3.0
_MOST_KILLS_OF_A_RUN = 8
# Whole tensors that one process writes, and shards that both write, in the background.
_ENGINES: dict[str, dict[str, Any]] = {
    "DDP": {"parallel": {"sharding": "none"}, "save": {"every": 1, "keep": 2}},
    "FSDP2": {"parallel": {"sharding": "full"}, "save": {"every": 1, "keep": 2, "asynchronous": True}},
}


@pytest.mark.parametrize("engine", list(_ENGINES))
def test_r1_two_processes_killed_together_end_as_if_never_killed(
    engine: str,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    model, num_kills = tiny_pipeline("ddpm"), proof_size(50, 3)
    sections: dict[str, Any] = {**_ENGINES[engine], "method": {"kind": "full"}, "train": {"steps": _NUM_STEPS}}
    kept = {**sections, "save": {**sections["save"], "keep": _NUM_STEPS}}
    whole = TwoProcesses(forked_python, model, tmp_path / "whole", **kept)
    out, _ = whole.process.communicate(timeout=HANG_S)
    assert whole.process.returncode == 0, out
    checkpoints = {path.name: hashes_of(path) for path in whole.run.checkpoints.glob("step-*")}
    assert len(checkpoints) == _NUM_STEPS
    rng, num_runs, num_done = random.Random(f"r1 {engine}"), 0, 0
    torn: list[str] = []
    different: list[str] = []
    while num_done < num_kills:
        most = min(_MOST_KILLS_OF_A_RUN, num_kills - num_done)
        run, num, seen = _killed_until_done(
            TwoProcesses(forked_python, model, tmp_path / str(num_runs), **sections), checkpoints, rng, most
        )
        num_done, num_runs, torn = num_done + num, num_runs + 1, torn + seen
        different += end_of(whole.run).differences(end_of(run))
    report_figure(
        f"{engine}: {num_done} kills of both processes in {num_runs} runs: {len(torn)} torn files, {len(different)} "
        "differences from the uninterrupted run; the first of each run with a checkpoint behind it"
    )
    assert torn == []
    assert different == []


def _killed_until_done(
    two: TwoProcesses, whole: dict[str, dict[str, str]], rng: random.Random, most: int
) -> tuple[RunDirectory, int, list[str]]:
    """The run, how often it was killed, and files that are not as in the uninterrupted run."""
    num, torn = 0, []
    while True:
        if num == 0:
            # Otherwise all might strike before there is anything to resume.
            two.wait_for_save_of_start(1)
        if num < most:
            time.sleep(rng.uniform(0, 0.3 if num == 0 else _LONGEST_S))
        else:
            two.process.communicate(timeout=HANG_S)
        code = two.process.poll()
        two.kill_all()
        num += code is None
        run = newest_run(two.runs)
        torn += list(torn_files(run, whole)) if run is not None else []
        record = None if run is None else run.read_record()
        if run is not None and record is not None and record.outcome.status == "finished":
            return run, num, torn
        assert code is None, f"it left with {code} before it was done"
        two.go_on()
