"""Many saves with rotation in a process that stops itself before every file operation."""

import os
import shutil
import signal
from pathlib import Path

from foretune.training.checkpoint_files import Checkpoint
from foretune.training.checkpoints import CheckpointStore
from tests.proofs.holding import before_each_operation_of_a_save
from tests.proofs.saving import made_checkpoint


class RemovesFirst(CheckpointStore):
    """The control: it removes what it will not keep before it writes."""

    def write(self, checkpoint: Checkpoint) -> Path:
        for old in self.steps():
            shutil.rmtree(self.path(old))
        return super().write(checkpoint)


def save_many(directory: str, num_saves: int, keep: int, removes_first: bool) -> None:
    """Saves one step after the other and stops itself before every file operation, until it is asked to go on."""
    kind = RemovesFirst if removes_first else CheckpointStore
    before_each_operation_of_a_save(kind, lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    store = kind(Path(directory), keep)
    for step in range(1, num_saves + 1):
        store.write(made_checkpoint(step))
