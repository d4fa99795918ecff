"""R1: a training that is killed at random moments and resumed ends, bit for bit, as if nothing had happened."""

import itertools
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from foretune.record.run_directory import RunDirectory
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.ends import End, end_of, hashes_of
from tests.proofs.fork_server import ForkServer
from tests.proofs.killing import MOMENTS, Kills, Launch, Moment, forked, killed_until_done, started_afresh, struck, wait
from tests.proofs.partial_counts import PartialCounts
from tests.proofs.resume_cells import Cell

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

_NUM_STEPS = 12
_NUM_KILLS_OF_FRESH_PROCESSES = 3
# Its folder, three files of tensors and the state.
_NUM_OPERATIONS_OF_A_NAIVE_SAVE = 5
# A whole model with an average; an adapter with dropout, loss scaling and loader processes, which outlive a kill.
_CELLS = [
    Cell.from_row("flux full fp32 3 ema 0 0.5 cosine cached validates dies-after-step"),
    Cell.from_row("sd3 lora-dropout fp16 1 ema 2 0 linear cached validates dies-after-step"),
]


@dataclass(frozen=True)
class Subject:
    """A training and its uninterrupted run."""

    experiment: dict[str, Any]
    end: End
    checkpoints: dict[str, dict[str, str]]
    """Hashes of the checkpoint after every step, by its name."""

    def killed(self, launch: Launch, folder: Path, seed: str, most: int, moments: Sequence[Moment]) -> Kills:
        """Its own cache: images and captions are encoded under fire too."""
        experiment = {**self.experiment, "data": {**self.experiment["data"], "cache_dir": str(folder / "cache")}}
        run, kills = killed_until_done(launch, experiment, folder, self.checkpoints, random.Random(seed), most, moments)
        kills.different = self.end.differences(end_of(run))
        shutil.rmtree(folder)
        return kills


@pytest.fixture(scope="module")
def subjects(
    tiny_models: TinyModels, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> list[Subject]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return [_subject(cell, tiny_models, fork_server, folder / str(number)) for number, cell in enumerate(_CELLS)]


def test_r1_killed_runs_end_as_if_never_killed(
    subjects: list[Subject],
    fork_server: ForkServer,
    tmp_path: Path,
    partial_counts: PartialCounts,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    num_kills = proof_size(200, 20)
    fresh = started_afresh(fork_server, tmp_path / "log.txt")

    def count(launch: Launch, number: int, most: int, moments: Sequence[Moment] = MOMENTS) -> dict[str, Any]:
        subject = subjects[number % len(subjects)]
        return asdict(subject.killed(launch, tmp_path / str(number), f"r1 {number}", most, moments))

    # Nothing holds a process that is started as a user starts it; the first is killed while it imports.
    unheld: tuple[Moment, ...] = ("any", "after a checkpoint")
    seen = Kills(**partial_counts.part("fresh", lambda: count(fresh, 0, _NUM_KILLS_OF_FRESH_PROCESSES, unheld)))
    num_of_fresh = seen.num
    while seen.num < num_kills:
        number, left = seen.num_runs, num_kills - seen.num
        part = partial(count, forked(fork_server), number, left)
        seen += Kills(**partial_counts.part(f"run {number}", part))
    partial_counts.forget()
    report_figure(
        f"{seen.num} kills ({num_of_fresh} of freshly started processes, {seen.num_in_save} inside a save, "
        f"{seen.num_before_run} before there was a run): {len(seen.torn)} torn files, "
        f"{len(seen.different)} differences from the uninterrupted runs in {seen.num_runs} runs"
    )
    assert seen.torn == []
    assert seen.different == []
    assert seen.num_in_save > 0, "no kill struck where it matters most"


def test_r1_control_a_naive_writer_loses_checkpoints(
    subjects: list[Subject],
    fork_server: ForkServer,
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    most, enough = proof_size(200, 60), proof_size(10, 1)
    rng = random.Random("r1 control")
    launch = forked(fork_server, "naive_command_line")
    num_kills = num_lost = 0
    for number in itertools.count():
        killed, lost = _killed_naive_run(launch, subjects[0], tmp_path / str(number), rng)
        assert number < most, "runs end by themselves before they can be killed"
        num_kills, num_lost = num_kills + killed, num_lost + lost
        if num_kills >= most or num_lost >= enough:
            break
    report_figure(f"control: a writer that overwrites in place lost its checkpoint in {num_lost} of {num_kills} kills")
    assert num_lost >= enough


def _subject(cell: Cell, models: TinyModels, server: ForkServer, folder: Path) -> Subject:
    folder.mkdir()
    experiment = cell.experiment(str(models.path(cell.family)), str(models.cache), "cpu")
    experiment["train"]["steps"] = _NUM_STEPS
    experiment["validate"]["every"] = 3
    experiment["save"] = {"every": 1, "keep": 2}
    # JSON is YAML.
    (folder / "experiment.yaml").write_text(json.dumps(experiment))
    arguments = ["train", str(folder / "experiment.yaml"), f"save.keep={_NUM_STEPS}", "--runs", str(folder)]
    assert wait(forked(server)(arguments)) == 0
    run = RunDirectory.open(folder / "cell" / "latest")
    checkpoints = {path.name: hashes_of(path) for path in run.checkpoints.glob("step-*")}
    assert len(checkpoints) == _NUM_STEPS
    return Subject(experiment, end_of(run), checkpoints)


def _killed_naive_run(launch: Launch, subject: Subject, folder: Path, rng: random.Random) -> tuple[int, bool]:
    """Kills a run until its checkpoint is lost or it is done; returns the kills and whether it was lost."""
    folder.mkdir()
    (folder / "experiment.yaml").write_text(json.dumps(subject.experiment))
    arguments = ["train", str(folder / "experiment.yaml"), "--runs", str(folder)]
    states = [
        {name: h for name, h in state.items() if name != "manifest.json"} for state in subject.checkpoints.values()
    ]
    num_kills = 0

    def strike(moment: Moment) -> int:
        return struck(
            launch,
            arguments,
            moment,
            lambda: _changed(_naive_checkpoint(folder)),
            rng,
            num_operations=_NUM_OPERATIONS_OF_A_NAIVE_SAVE,
            work=folder,
        )[0]

    while strike(MOMENTS[num_kills % len(MOMENTS)]) < 0:
        num_kills += 1
        latest = _naive_checkpoint(folder)
        if latest is not None:
            if hashes_of(latest) not in states:
                return num_kills, True
            arguments = ["resume", str(latest.parents[1])]
    return num_kills, False


def _naive_checkpoint(folder: Path) -> Path | None:
    return next((path for path in folder.glob("cell/*/checkpoints/latest") if not path.parents[1].is_symlink()), None)


def _changed(checkpoint: Path | None) -> int:
    """When a step was last saved over the one before, in nanoseconds."""
    state = checkpoint / "state.json" if checkpoint else None
    return state.stat().st_mtime_ns if state and state.exists() else 0
