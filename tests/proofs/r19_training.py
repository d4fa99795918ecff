"""`foretune train` that says at its end what its steps took: run in a process of its own by the proof R19.

What is measured is wrapped when the command has already decided how threads wait, so that this changes nothing of it.
Before its first step it prints STEPS_BEGIN and waits for a line: what shall run beside the steps need not run beside
the imports.
"""

import json
import sys
import time
from types import FunctionType
from typing import Any
from unittest import mock

from foretune.cli import progress
from foretune.cli.main import main
from foretune.cli.quiet import quieten

STEPS_BEGIN = "the steps begin"


def train_and_note(arguments: list[str]) -> dict[str, Any]:
    """Runs the command; returns the steps of its loop and their processor time."""
    noted: dict[str, Any] = {}

    def quieten_and_wrap() -> None:
        """Takes the place of what the command calls first once torch is imported."""
        quieten()
        from foretune.training.loop import Loop

        run = Loop.run
        if isinstance(run, FunctionType) and run.__name__ == "timed":
            return  # asked again, because a step was recorded for the forecast

        def timed(loop: Loop, first_step: int) -> Any:
            sys.stdout.write(f"{STEPS_BEGIN}\n")
            sys.stdout.flush()
            sys.stdin.readline()
            begin_s = time.process_time()
            end = run(loop, first_step)
            noted.update(num_steps=loop.num_done, processor_s=time.process_time() - begin_s)
            return end

        mock.patch.object(Loop, "run", timed).start()

    with (
        mock.patch.object(progress, "imports_done", quieten_and_wrap),
        mock.patch.object(sys, "argv", ["foretune", "train", *arguments]),
    ):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    return noted


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(train_and_note(sys.argv[1:])) + "\n")
