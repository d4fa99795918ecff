"""`foretune train` that says at its end what its steps took: run in a process of its own by the proof R19.

What is measured is wrapped when the command has already decided how threads wait, so that this changes nothing of it.
"""

import json
import sys
import time
from typing import Any

from foretune.cli import train
from foretune.cli.main import main


def measured_from_here(result: dict[str, Any]) -> None:
    """Has the loop note processor time and steps; called where the command imports torch."""
    prepare = train.quieten

    def quieten() -> None:
        prepare()
        from foretune.run.loop import Loop

        run = Loop.run

        def timed(loop: Loop, first_step: int) -> Any:
            begin_s = time.process_time()
            done, end = run(loop, first_step)
            result.update(num_steps=done, processor_s=time.process_time() - begin_s)
            return done, end

        Loop.run = timed  # type: ignore[method-assign]

    train.quieten = quieten


if __name__ == "__main__":
    noted: dict[str, Any] = {}
    measured_from_here(noted)
    sys.argv = ["foretune", "train", *sys.argv[1:]]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.write("\n" + json.dumps(noted) + "\n")
