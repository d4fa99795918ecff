"""What processes that are going to be killed do."""

import sys
from pathlib import Path
from unittest import mock

from foretune.cli.main import main
from foretune.training.checkpoints import CheckpointStore
from tests.proofs.holding import hold_in_a_save
from tests.proofs.naive_store import NaiveStore
from tests.proofs.stopped_places import hold


def command_line(arguments: list[str], hold_at: int | None = None, sign: str = "") -> None:
    """`foretune` with these arguments; it may stand still at a file operation of its first saves."""
    if hold_at is not None:
        hold_in_a_save(CheckpointStore, hold_at, Path(sign))
    sys.argv = ["foretune", *arguments]
    main()


def naive_command_line(arguments: list[str], hold_at: int | None = None, sign: str = "") -> None:
    """The same with a writer that overwrites its only checkpoint in place."""
    if hold_at is not None:
        hold_in_a_save(NaiveStore, hold_at, Path(sign))
    with (
        mock.patch("foretune.training.session.CheckpointStore", NaiveStore),
        mock.patch("foretune.training.train.CheckpointStore", NaiveStore),
    ):
        command_line(arguments)


def held_command_line(arguments: list[str], place: str, sign: str, released: str) -> None:
    """`foretune`, which stands still at a place of its training until the file `released` is there, or for ever."""
    hold(place, Path(sign), Path(released))
    command_line(arguments)
