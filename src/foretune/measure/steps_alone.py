"""The steps of a loop and nothing around them: no validation, no checkpoint. For those who measure them."""

import traceback

from foretune.core.values import Outcome
from foretune.training.loop import Loop
from foretune.training.train import status_of


def make_steps(loop: Loop) -> Outcome:
    """All steps; what ended them early is an outcome with its reason, and in the log with its traceback."""
    done = 0
    try:
        for done in loop.steps(0):  # noqa: B007 - where it stopped is told
            pass
        loop.drain()
    except Exception as error:  # noqa: BLE001 - whatever ended the steps is the outcome
        loop.events.append("crashed", traceback=traceback.format_exc())
        return Outcome(status=status_of(error), steps_done=done, reason=f"{type(error).__name__}: {error}")
    return Outcome(status="finished", steps_done=done)
