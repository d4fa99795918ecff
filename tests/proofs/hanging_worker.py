"""One process of a run: `python -m tests.proofs.hanging_worker`. The second one hangs before a collective."""

import os
import time
from itertools import count
from pathlib import Path
from unittest import mock

from torch import Tensor

from foretune.api.rank_worker import main
from foretune.step.engine import Engine
from tests.proofs.lost_ranks import HANGS


def hang_before_the_collective(engine: Engine, loss: Tensor) -> Tensor:
    number, _, sign = os.environ[HANGS].partition(":")
    if next(_calls) == int(number):
        Path(sign).write_text(str(time.time()))
        while True:
            time.sleep(1)
    return _mean(engine, loss)


_mean, _calls = Engine.mean, count()

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        mock.patch.object(Engine, "mean", hang_before_the_collective).start()
    main()
