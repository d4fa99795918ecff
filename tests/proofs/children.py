"""What processes that are going to be killed do."""

import sys
from unittest import mock

from foretune.cli.main import main
from tests.proofs.naive_store import NaiveStore


def command_line(arguments: list[str]) -> None:
    """`foretune` with these arguments."""
    sys.argv = ["foretune", *arguments]
    main()


def naive_command_line(arguments: list[str]) -> None:
    """The same with a writer that overwrites its only checkpoint in place."""
    with mock.patch("foretune.run.train.CheckpointStore", NaiveStore):
        command_line(arguments)
