"""Savers of small checkpoints, for processes that are stopped or end in the middle of it."""

import errno
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from foretune.core.disk_faults import disk_fault
from foretune.training.checkpoint_files import Checkpoint
from foretune.training.checkpoints import CheckpointStore
from tests.proofs.naive_store import NaiveStore
from tests.proofs.recorded_writes import Refusal, recorded
from tests.proofs.syscalls import NotPermitted, run_until_syscall

COMPONENTS = ("weights", "optimizer", "ema")
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""A full disk, a quota, a broken disk."""
_NUM_VALUES = 20_000


def made_checkpoint(step: int, num_values: int = _NUM_VALUES) -> Checkpoint:
    """Different in every value from that of any other step."""
    tensors = {
        component: {
            f"{part}": torch.arange(num_values, dtype=torch.float32) + 1_000_000 * step + part for part in range(4)
        }
        for component in COMPONENTS
    }
    return Checkpoint(step, tensors, {"scaler": {"scale": float(step)}})


def is_made_checkpoint(found: Checkpoint, num_values: int = _NUM_VALUES) -> bool:
    """Whether it is, bit for bit, the one of its step."""
    made = made_checkpoint(found.step, num_values)
    return dict(found.scalars) == made.scalars and all(
        set(found.tensors[component]) == set(tensors)
        and all(torch.equal(found.tensors[component][name], tensor) for name, tensor in tensors.items())
        for component, tensors in made.tensors.items()
    )


def end_at_every_syscall(folder: str, every: int, result: str) -> None:
    """Ends a save at one system call after the other and writes down what can be loaded afterwards."""
    real = list(_outcomes(Path(folder) / "real", CheckpointStore, every))
    naive = list(_outcomes(Path(folder) / "naive", NaiveStore, every)) if real else []
    Path(result).write_text(json.dumps({"real": real, "naive": naive}))


def _outcomes(folder: Path, kind: type[CheckpointStore] | type[NaiveStore], every: int) -> Iterator[str]:
    """By system call: what is loaded after a save of step 2 over step 1 ended there; empty if none can be traced."""
    base, work = folder / "base", folder / "work"
    base.mkdir(parents=True)
    kind(base, keep=1).write(made_checkpoint(1))
    second = made_checkpoint(2)

    def save() -> None:
        kind(work, keep=1).write(second)

    shutil.copytree(base, work)
    try:
        num_syscalls = run_until_syscall(save, None)
    except NotPermitted:
        return
    for number in range(0, num_syscalls, every):
        shutil.rmtree(work)
        shutil.copytree(base, work)
        run_until_syscall(save, number)
        yield _loaded(kind(work, keep=1))


def _loaded(store: CheckpointStore | NaiveStore) -> str:
    is_committed = (store.directory / "step-000000002").exists()
    try:
        found = store.read_newest(COMPONENTS)
    except Exception as error:  # noqa: BLE001 - the control is expected to fail in any way
        return f"lost: {type(error).__name__}"
    if found is None or not is_made_checkpoint(found[0]):
        return "lost: not what was saved"
    if isinstance(store, CheckpointStore):
        if found[0].step != 1 + is_committed:
            return f"lost: step {found[0].step} is not the last that was committed"
        store.write(made_checkpoint(3))
        left = sorted(path.name for path in store.directory.iterdir())
        if left != ["step-000000003"]:
            return f"lost: the next save leaves {left}"
    return f"step {found[0].step}"


def refuse_every_change(folder: str, num_errors: int, result: str) -> None:
    """Refuses a save one change of the disk after the other; writes down what it raised and what can be loaded."""
    errors = REFUSALS[:num_errors]
    real = list(_refused(Path(folder) / "real", CheckpointStore, errors))
    naive = list(_refused(Path(folder) / "naive", NaiveStore, errors)) if real else []
    Path(result).write_text(json.dumps({"real": real, "naive": naive}))


def _refused(
    folder: Path, kind: type[CheckpointStore] | type[NaiveStore], errors: Sequence[int]
) -> Iterator[dict[str, Any]]:
    base, work, raised_file = folder / "base", folder / "work", folder / "raised.json"
    base.mkdir(parents=True)
    kind(base, keep=1).write(made_checkpoint(1))
    second = made_checkpoint(2)

    def save() -> None:
        try:
            kind(work, keep=1).write(second)
        except Exception as error:  # noqa: BLE001 - what it raises is what is examined
            raised_file.write_text(json.dumps([f"{type(error).__name__}: {error}", disk_fault(error)]))

    shutil.copytree(base, work)
    try:
        changes = recorded(save, work)
    except NotPermitted:
        return
    for error in errors:
        for number in range(len(changes)):
            shutil.rmtree(work)
            shutil.copytree(base, work)
            raised_file.unlink(missing_ok=True)
            try:
                recorded(save, work, Refusal(number, error))
            except NotPermitted:
                return
            raised, fault = json.loads(raised_file.read_text()) if raised_file.exists() else (None, None)
            about = {"error": errno.errorcode[error], "change": changes[number].kind, "path": changes[number].path}
            yield {**about, "raised": raised, "fault": fault, "loaded": _loaded(kind(work, keep=1))}


def record_save(directory: str, keep: int, step: int, num_values: int, result: str) -> None:
    """Saves a step and writes down what that changed in the directory; nothing where no process can be traced."""
    checkpoint = made_checkpoint(step, num_values)

    def save() -> None:
        CheckpointStore(Path(directory), keep).write(checkpoint)

    try:
        changes = recorded(save, Path(directory))
    except NotPermitted:
        changes = []
    Path(result).write_text(json.dumps([asdict(change) for change in changes]))


def facts_of(result: Path) -> Any:
    return json.loads(result.read_text())
