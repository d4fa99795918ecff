"""Places of a training at which a signal is to meet it: the process stands still there and says so."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from foretune.step.training_step import TrainingStep
from foretune.training import encoding, validating
from foretune.training.checkpoints import CheckpointStore
from tests.proofs.holding import before_each_operation_of_a_save

LEFT = ("caching", "first step", "held-out loss", "sampling")
"""Here a run leaves at once: the process is never released."""
FINISHED = ("later step", "save")
"""This is finished first: the process is released when the signal has arrived."""
ANY = "any"
"""At a random moment before the third step: a run that is done on a fast machine would leave nothing to stop."""


def hold(place: str, sign: Path, released: Path) -> None:
    """From now on in this process: makes the file `sign` at the place and waits for `released`, once."""

    def stand_still() -> None:
        if not sign.exists():
            sign.touch()
            while not released.exists():
                time.sleep(0.001)

    match place:
        case "caching":
            _before(encoding, "load_images", stand_still)
        case "first step":
            _before(TrainingStep, "__call__", stand_still)
        case "later step":
            _before(TrainingStep, "__call__", stand_still, number=2)
        # The first validation may come before any step.
        case "held-out loss":
            _before(validating, "mean_loss", stand_still, number=2)
        case "sampling":
            _before(validating, "sample", stand_still, number=2)
        case "save":
            before_each_operation_of_a_save(CheckpointStore, lambda _: stand_still())
        case _:
            assert place == ANY, place
            _before(TrainingStep, "__call__", stand_still, number=3)


def _before(owner: Any, name: str, act: Callable[[], None], number: int = 1) -> None:
    real, calls = getattr(owner, name), 0

    def watched(*arguments: Any, **others: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return real(*arguments, **others)

    mock.patch.object(owner, name, watched).start()
