"""R4: whatever is left out of the state is missed, when it is read or in the end."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.core.observer import Observer
from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from foretune.step.training_step import TrainingStep
from foretune.training.checkpoint_files import Checkpoint, Place
from foretune.training.checkpoints import CheckpointStore, NoGoodCheckpoint
from foretune.training.preparing import Prepared, prepare
from foretune.training.state import check, collect, components, restore
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.ends import end_of
from tests.proofs.omissions import mend_manifest, omissions
from tests.proofs.resume_cells import Cell
from tests.proofs.stopping import Stopper, go_on, start

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

# Between them all that a checkpoint can hold: adapters, an average and a scaler; the weights of a whole model.
_CELLS = [
    Cell.from_row("flux lora-dropout fp16 3 ema 0 0 cosine cached - asked-at-epoch-end"),
    Cell.from_row("sd3 full fp32 1 - 0 0 linear cached - asked-at-epoch-end"),
]
# Whole resumes, which take a second each; the rest is asked of the reader alone.
_NUM_RESUMED = 12


@pytest.mark.parametrize("cell", _CELLS, ids=lambda cell: f"{cell.family}-{cell.method}-{cell.precision}")
def test_r4_what_is_left_out_of_a_checkpoint_is_refused(
    cell: Cell,
    tiny_models: TinyModels,
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    run = _stopped(cell, tiny_models, tmp_path)
    _, experiment, effective = run.read_experiment()
    prepared = prepare(experiment, Path(effective["model_folder"]), Observer())
    (checkpoint,) = run.checkpoints.glob("step-*")
    whole = tmp_path / "whole"
    shutil.copytree(checkpoint, whole)
    mend_manifest(checkpoint)
    assert _is_accepted(prepared, run), "rewriting the manifest must not be what is noticed"
    found = list(omissions(whole, every=proof_size(1, 10)))
    accepted = []
    for name, omit in found:
        _replace(checkpoint, whole)
        omit(checkpoint)
        if _is_accepted(prepared, run):
            accepted.append(name)
    resumed = found[:: max(1, len(found) // _NUM_RESUMED)]
    not_refused = []
    for name, omit in resumed:
        _replace(checkpoint, whole)
        omit(checkpoint)
        if not _is_refused_before_a_step(run):
            not_refused.append(name)
    report_figure(
        f"{len(found) - len(accepted)} of {len(found)} omissions refused before weights are applied, "
        f"{len(resumed) - len(not_refused)} of {len(resumed)} whole resumes before a step"
    )
    assert accepted == []
    assert not_refused == []


def test_r4_control_a_reader_that_forgets_is_noticed(
    tiny_models: TinyModels, tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    cell = _CELLS[0]
    experiment = cell.experiment(str(tiny_models.path(cell.family)), str(tiny_models.cache), "cpu")
    whole = end_of(start(experiment, tmp_path / "whole"))
    stopped = _stopped(cell, tiny_models, tmp_path / "stopped")
    num_different = {}
    for part in (None, "weights", "optimizer", "ema", "scaler", "step"):
        copy = tmp_path / f"without-{part}" / stopped.path.relative_to(tmp_path / "stopped")
        shutil.copytree(stopped.path, copy)
        with pytest.MonkeyPatch.context() as patch:
            if part == "step":
                patch.setattr("foretune.training.session.CheckpointStore", _StoreThatForgetsTheStep)
            elif part is not None:
                patch.setattr("foretune.training.train.restore", _restore_without(part))
            go_on(RunDirectory.open(copy))
        num_different[part] = len(whole.differences(end_of(RunDirectory.open(copy))))
    assert num_different.pop(None) == 0
    report_figure(
        f"control: {sum(n > 0 for n in num_different.values())} of {len(num_different)} readers that forget a part "
        f"are noticed, by so many differences in the end: {num_different}"
    )
    assert all(num_different.values())


def _stopped(cell: Cell, models: TinyModels, folder: Path) -> RunDirectory:
    experiment = cell.experiment(str(models.path(cell.family)), str(models.cache), "cpu")
    return start(experiment, folder / "runs", Stopper(ask_after=3))


def _replace(checkpoint: Path, whole: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(whole, checkpoint)


def _is_accepted(prepared: Prepared, run: RunDirectory) -> bool:
    store = CheckpointStore(run.checkpoints, keep=1)
    try:
        store.read_newest(components(prepared.step), lambda checkpoint: check(prepared.step, checkpoint))
    except NoGoodCheckpoint:
        return False
    return True


def _is_refused_before_a_step(run: RunDirectory) -> bool:
    num_before = sum(1 for _ in read_events(run.events))
    try:
        go_on(run)
    except NoGoodCheckpoint:
        return sum(1 for _ in read_events(run.events)) == num_before
    return False


def _restore_without(part: str) -> Callable[[TrainingStep, Checkpoint], None]:
    def forgetful(step: TrainingStep, checkpoint: Checkpoint) -> None:
        fresh = collect(step, 0)
        copies = {name: tensor.detach().clone() for name, tensor in fresh.tensors.get(part, {}).items()}
        if part == "scaler":
            checkpoint = dataclasses.replace(checkpoint, scalars=fresh.scalars)
        else:
            checkpoint = dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, part: copies})
        restore(step, checkpoint)

    return forgetful


class _StoreThatForgetsTheStep(CheckpointStore):
    """Begins one step too early with the state that belongs after it."""

    def read_newest(
        self,
        components: object,
        check: Callable[[Checkpoint], None] | None = None,
        place: Place | None = None,
    ) -> tuple[Checkpoint, list[str]] | None:
        assert isinstance(components, tuple)
        found = super().read_newest(components, check, place)
        assert found is not None
        return dataclasses.replace(found[0], step=found[0].step - 1), found[1]
