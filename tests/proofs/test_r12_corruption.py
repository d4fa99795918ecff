"""R12: a damaged checkpoint is never used; the newest good one is, and without a good one nothing starts over."""

import collections
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.step.training_step import TrainingStep
from foretune.training.checkpoints import CheckpointStore, NoGoodCheckpoint
from foretune.training.preparing import prepare
from foretune.training.state import check, components
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.corruption import KINDS, corrupt
from tests.proofs.ends import end_of
from tests.proofs.resume_cells import NUM_STEPS, Cell
from tests.proofs.stopping import Stopper, go_on, start

pytestmark = [pytest.mark.proof, pytest.mark.slow]

_CELL = Cell.from_row("flux lora-dropout fp16 1 ema 0 0 cosine cached - dies-after-step")
_NUM_CHECKPOINTS = 3


@dataclass(frozen=True)
class Subject:
    """A stopped run with three checkpoints, the same run uninterrupted, and the step they are read for."""

    stopped: RunDirectory
    whole: RunDirectory
    step: TrainingStep


@pytest.fixture(scope="module")
def subject(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("corruption")
    experiment = _CELL.experiment(str(tiny_models.path(_CELL.family)), str(tiny_models.cache), "cpu")
    experiment["save"] = {"every": 1, "keep": _NUM_CHECKPOINTS}
    whole = start(experiment, folder / "whole")
    stopped = start(experiment, folder / "stopped", Stopper(ask_after=NUM_STEPS - 1))
    _, read, effective = stopped.read_experiment()
    return Subject(stopped, whole, prepare(read, Path(effective["model_folder"]), Observer()).step)


def test_r12_corrupted_checkpoints_are_caught(
    subject: Subject, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    rng = random.Random("r12")
    names = sorted(path.name for path in subject.stopped.checkpoints.glob("step-*"))
    assert len(names) == _NUM_CHECKPOINTS
    num_cases = proof_size(1000, 100)
    wrong, num_refused, num_trusted = [], 0, 0
    for case in range(num_cases):
        kind = KINDS[case % len(KINDS)]
        # The newest, the two newest, or all are damaged.
        damaged = names[-rng.choice([1, 1, 1, 2, 2, 3]) :]
        folder = tmp_path / str(case)
        shutil.copytree(subject.stopped.checkpoints, folder)
        for name in reversed(damaged):
            corrupt(folder / name, kind, subject.stopped.checkpoints, rng)
        good = names[-len(damaged) - 1] if len(damaged) < len(names) else None
        fault = _judge(subject.step, folder, len(damaged), good)
        num_refused += good is None
        num_trusted += _naive_reader_is_content(folder / names[-1])
        wrong += [f"case {case}, {kind}, {len(damaged)} damaged: {fault}"] if fault else []
        shutil.rmtree(folder)
    report_figure(
        f"{num_cases - len(wrong)} of {num_cases} corrupted checkpoints caught before weights are applied, the newest "
        f"good one taken, {num_refused} times with none left refused; a reader that trusts takes {num_trusted}"
    )
    assert wrong == []
    assert num_trusted > num_cases / 10, "the damage was too easy to see"


def test_r12_a_run_with_a_corrupted_checkpoint_ends_the_same(
    subject: Subject, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    rng = random.Random("r12 resumed")
    whole = end_of(subject.whole)
    kinds = KINDS[:: proof_size(1, 5)]
    different: dict[str, list[str]] = collections.defaultdict(list)
    for number, kind in enumerate(kinds):
        copy = tmp_path / str(number) / "cell" / subject.stopped.path.name
        shutil.copytree(subject.stopped.path, copy)
        run = RunDirectory.open(copy)
        newest = max(run.checkpoints.glob("step-*"))
        corrupt(newest, kind, subject.stopped.checkpoints, rng)
        observer = Stopper()
        go_on(run, observer)
        different[kind] += end_of(run).differences(whole)
        if not any("damaged" in warning and newest.name in warning for warning in observer.warnings):
            different[kind].append("no warning")
    found = {kind: parts for kind, parts in different.items() if parts}
    report_figure(
        f"{len(kinds) - len(found)} of {len(kinds)} runs with a corrupted checkpoint end bit-exact, and say so"
    )
    assert found == {}


def _judge(step: TrainingStep, folder: Path, num_damaged: int, good: str | None) -> str | None:
    """What the reader did wrong, or None."""
    try:
        found = CheckpointStore(folder, keep=1).read_newest(components(step), lambda read: check(step, read))
    except NoGoodCheckpoint:
        return None if good is None else "it refused, but one was good"
    except Exception as error:  # noqa: BLE001 - a crash of any kind is what is looked for
        return f"{type(error).__name__}: {error}"
    if found is None or good is None:
        return "it did not refuse"
    checkpoint, faults = found
    if f"step-{checkpoint.step:09d}" != good:
        return f"it took step {checkpoint.step}"
    return None if len(faults) == num_damaged else f"it reported {len(faults)} faults"


def _naive_reader_is_content(checkpoint: Path) -> bool:
    """A reader that takes whatever can be parsed."""
    try:
        step = json.loads((checkpoint / "state.json").read_bytes())["step"]
        return isinstance(step, int) and all(load_file(checkpoint / f"{name}.safetensors") for name in _COMPONENTS)
    except Exception:  # noqa: BLE001 - it has no idea what can go wrong
        return False


_COMPONENTS = ("weights", "optimizer", "ema")
