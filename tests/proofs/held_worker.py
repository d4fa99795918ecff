"""One process of a run: `python -m tests.proofs.held_worker`. Whoever comes first to a place stands still there.

It goes on as soon as its handler of signals was called. Where there is none yet, the signal ends it.
"""

import os
from pathlib import Path
from unittest import mock

from foretune.api.rank_worker import main
from foretune.core.interrupts import StopRequest
from tests.proofs.lost_ranks import HELD
from tests.proofs.stopped_places import hold


def stand_still() -> None:
    place, _, folder = os.environ[HELD].partition(":")
    signalled = Path(folder) / f"signalled-{os.environ['RANK']}"
    ask = StopRequest.ask

    def ask_and_go_on(request: StopRequest, reason: str) -> None:
        signalled.touch()
        ask(request, reason)

    mock.patch.object(StopRequest, "ask", ask_and_go_on).start()
    hold(place, Path(folder) / HELD, signalled)


if __name__ == "__main__":
    stand_still()
    main()
