"""Stands still at a file operation of a save: where Python reports the operation, not after some time."""

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from foretune.training.checkpoints import CheckpointStore
from tests.proofs.naive_store import NaiveStore

_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
"""Events of Python's audit hooks, each raised before the operation is made."""
Writer = type[CheckpointStore] | type[NaiveStore]


def before_each_operation_of_a_save(writer: Writer, act: Callable[[int], None]) -> None:
    """From now on in this process: calls `act` with the number of the operation, counted through all saves.

    Hooks cannot be taken away again, so this is for processes that are made for it.
    """
    saving, number = threading.local(), 0

    def watched(write: Callable[..., Path]) -> Callable[..., Path]:
        def watched_write(*arguments: Any) -> Path:
            before, saving.now = getattr(saving, "now", False), True
            try:
                return write(*arguments)
            finally:
                saving.now = before

        return watched_write

    def hook(event: str, _: Any) -> None:
        nonlocal number
        # What sensors and `act` itself do with files is no part of the save.
        if event in _OPERATIONS and getattr(saving, "now", False):
            number += 1
            saving.now = False
            act(number)
            saving.now = True

    # A save in the background begins with the second one.
    for name in ("write", "write_files"):
        if hasattr(writer, name):
            mock.patch.object(writer, name, watched(getattr(writer, name))).start()
    sys.addaudithook(hook)


def hold_in_a_save(writer: Writer, wanted: int, sign: Path) -> None:
    """Stands still before the operation of that number until it is killed; `sign` appears when it does."""

    def hold(number: int) -> None:
        if number == wanted:
            sign.touch()
            while True:
                signal.pause()

    before_each_operation_of_a_save(writer, hold)
