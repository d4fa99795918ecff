"""Saves checkpoints before the training continues, or in the background."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from foretune.training.checkpoint_files import Checkpoint, copied_to_host, files_of
from foretune.training.checkpoints import CheckpointStore

Saved = tuple[int, Path]
"""Steps that are done, and where the checkpoint is."""


class Saver:
    """Hands checkpoints to a store, one at a time.

    An asynchronous save copies the tensors to the host's memory, which is all that the training waits for; a thread
    writes, verifies and commits the copy. The processes of a run must then have a group of their own for the store,
    because their threads talk while the training sends something else.
    """

    def __init__(self, store: CheckpointStore, *, is_asynchronous: bool = False) -> None:
        self.store, self.is_asynchronous = store, is_asynchronous
        self._thread: ThreadPoolExecutor | None = None
        self._writing: tuple[int, Future[Path]] | None = None

    def save(self, checkpoint: Checkpoint) -> Saved | None:
        """What is saved when it returns; None while a thread writes it. The one before must have been taken."""
        assert self._writing is None, "one save at a time"
        if not self.is_asynchronous:
            return checkpoint.step, self.store.write(checkpoint)
        files = copied_to_host(files_of(checkpoint, self.store.ranks))
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="saver")
        write = self.store.write_files
        self._writing = checkpoint.step, self._thread.submit(write, checkpoint.step, files, checkpoint.scalars)
        return None

    def take(self, *, waits: bool) -> Saved | None:
        """What the thread has saved, once; raises why it could not. `waits`: until it is there, if there is one."""
        if self._writing is None or not (waits or self._writing[1].done()):
            return None
        (step, written), self._writing = self._writing, None
        return step, written.result()

    def close(self) -> None:
        """Ends the thread; waits for what it writes."""
        if self._thread is not None:
            self._thread.shutdown()
