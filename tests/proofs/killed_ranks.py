"""Runs of two processes that are killed again and again until they are done, both together or one of them: on any
device.
"""

import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.record.run_directory import RunDirectory
from tests.proofs.ends import end_of, hashes_of
from tests.proofs.killing import newest_run, torn_files
from tests.proofs.lost_ranks import TwoProcesses
from tests.training.short_runs import losses_of
from tests.waiting import HANG_S, waited_until

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

MOST_KILLS_OF_A_RUN = 8
_AFTER_CHECKPOINT_S = 0.5
_ANY_TIME_S = 3.0
_BACK_S = 30.0


@dataclass
class KilledRuns:
    """What was seen of all runs."""

    num_kills: int = 0
    num_runs: int = 0
    num_in_save: int = 0
    """Kills that left a checkpoint behind that was not yet whole."""
    torn: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    def figure(self) -> str:
        return (
            f"{self.num_kills} kills of both processes in {self.num_runs} runs ({self.num_in_save} inside a save): "
            f"{len(self.torn)} torn files, {len(self.different)} differences from the uninterrupted run"
        )


def killed_runs(
    forked: "ForkedPython", model: Path, folder: Path, sections: dict[str, Any], *, num_kills: int, num_steps: int
) -> KilledRuns:
    """Kills runs so often, in each of them `MOST_KILLS_OF_A_RUN` times or until it is done.

    A checkpoint is saved after each step: `sections` says how. What is on the disk after each kill is compared with
    what the uninterrupted run has saved.
    """
    sections = {**sections, "train": {**sections.get("train", {}), "steps": num_steps}}

    def started(name: str, keep: int) -> TwoProcesses:
        save = {**sections.get("save", {}), "every": 1, "keep": keep}
        return TwoProcesses(forked, model, folder / name, **{**sections, "save": save})

    whole = started("whole", num_steps)
    out, _ = whole.process.communicate(timeout=HANG_S)
    assert whole.process.returncode == 0, out
    checkpoints = {path.name: hashes_of(path) for path in whole.run.checkpoints.glob("step-*")}
    assert len(checkpoints) == num_steps
    seen, rng = KilledRuns(), random.Random(str(sections))
    while seen.num_kills < num_kills:
        most = min(MOST_KILLS_OF_A_RUN, num_kills - seen.num_kills)
        run = _killed_until_done(started(str(seen.num_runs), 2), checkpoints, rng, most, seen)
        seen.num_runs += 1
        seen.different += end_of(whole.run).differences(end_of(run))
    return seen


def _killed_until_done(
    two: TwoProcesses, whole: dict[str, dict[str, str]], rng: random.Random, most: int, seen: KilledRuns
) -> RunDirectory:
    """Every other kill comes soon after a new checkpoint, so that runs get on; the others at any moment."""
    num = 0
    while True:
        if num < most:
            comes_after_save = num % 2 == 0
            if comes_after_save:
                _wait_for_checkpoint(two)
            time.sleep(rng.uniform(0, _AFTER_CHECKPOINT_S if comes_after_save else _ANY_TIME_S))
        else:
            two.process.communicate(timeout=HANG_S)
        code = two.process.poll()
        two.kill_all()
        run = newest_run(two.runs)
        if code is None:
            num += 1
            seen.num_kills += 1
            seen.num_in_save += run is not None and any(run.checkpoints.glob(".writing-*"))
        seen.torn += [] if run is None else torn_files(run, whole)
        record = None if run is None else run.read_record()
        # A kill may come when the record is written and the processes are about to leave.
        if run is not None and record is not None and record.outcome.status == "finished":
            return run
        assert code is None, f"it left with {code} before it was done"
        two.go_on()


def _wait_for_checkpoint(two: TwoProcesses) -> None:
    before = two.newest_checkpoint()
    waited_until(lambda: two.newest_checkpoint() != before or two.process.poll() is not None)


def check_restarts(
    forked: "ForkedPython",
    model: Path,
    folder: Path,
    sections: dict[str, Any],
    *,
    num_kills: int,
    num_steps_for_each: int,
    is_allowed: bool,
) -> str:
    """Kills one process of a run so often, which starts again as often, or once less; returns a figure.

    A checkpoint is saved every other step.
    """
    restarts, num_steps = num_kills if is_allowed else num_kills - 1, num_steps_for_each * (num_kills + 1)
    sections = {
        **sections,
        "train": {**sections.get("train", {}), "steps": num_steps},
        "save": {**sections.get("save", {}), "every": 2},
    }
    parallel = {**sections.get("parallel", {}), "restarts": restarts}
    two = TwoProcesses(forked, model, folder / "killed", **{**sections, "parallel": parallel})
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
    back_s = [start["time_s"] - last_s for start, last_s in zip(starts[1:], killed_s, strict=False)]
    if os.environ.get("FORETUNE_PROOFS") == "full":
        assert max(back_s, default=0) <= _BACK_S
    losses: dict[int, float] = {}
    for event in two.events("step"):
        assert losses.setdefault(event["step"], event["loss"]) == event["loss"], "a step that is repeated is the same"
    figure = f"{num_kills} kills, {restarts} restarts allowed: {len(starts) - 1} made"
    figure += f", each after {max(back_s):.1f} s at most" if back_s else ""
    figure += ", 0 processes left behind"
    if not is_allowed:
        assert two.process.returncode == 1
        assert f"foretune resume {two.run.path}" in out.replace("\n", "")
        return figure
    assert two.process.returncode == 0, out
    assert set(losses) == set(range(num_steps))
    whole = TwoProcesses(forked, model, folder / "whole", **sections)
    out, _ = whole.process.communicate(timeout=HANG_S)
    assert whole.process.returncode == 0, out
    assert [losses[step] for step in sorted(losses)] == losses_of(whole.run), "as if nothing had happened"
    return figure
