"""What each process of a run does that `launching` started: find its request, act, and report if it is the first."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.observer import Observer, StepReport
from foretune.core.observer_lines import LineObserver
from foretune.core.values import Outcome
from foretune.training.launching import ANSWER, PIPE, REFUSED, REQUEST_VARIABLE, RunEnded
from foretune.training.ranks import STORE_VARIABLE, found_ranks

_SET_PARENT_DEATH_SIGNAL = 1

Act = Callable[[dict[str, Any], Observer], dict[str, Any]]
"""What a process does with the request. What the first one returns is the answer; the others have a silent observer."""


def run_rank(act: Act) -> None:
    """The main function of a module that is started with `python -m` in each process."""
    from torch.distributed.elastic.multiprocessing.errors import record

    _end_with_parent()
    record(_run)(act)


def refuse_failure(outcome: Outcome) -> None:
    """The agent must see that a process failed: it ends the others, or starts all of them again."""
    if outcome.status not in ("finished", "interrupted"):
        raise RunEnded(f"{outcome.status}: {outcome.reason}")


def _run(act: Act) -> None:
    scratch = Path(os.environ[REQUEST_VARIABLE])
    request = json.loads((scratch / "request.json").read_text(encoding="utf-8"))
    ranks = found_ranks()
    assert ranks is not None, "started by the elastic agent"
    # Each start has its own: a store remembers the processes that are gone.
    os.environ[STORE_VARIABLE] = str(scratch / f"store-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")
    if not ranks.is_first:
        act(request, Observer())
        return
    with (scratch / PIPE).open("w", encoding="utf-8") as file:
        teller = _FirstProcess(file)
        try:
            teller.tell(ANSWER, **act(request, teller))
        except UserError as error:
            teller.tell(REFUSED, text=str(error))
            raise


class _FirstProcess(LineObserver):
    """Adds this process's peak to the report of a step: the process that shows it has another one."""

    def stepped(self, report: StepReport) -> None:
        from foretune.accelerator.memory import peak_allocated_bytes
        from foretune.training.devices import available_devices, peak_host_bytes

        peak_bytes = peak_allocated_bytes(available_devices()[0]) or peak_host_bytes()
        super().stepped(replace(report, peak_bytes=peak_bytes))


def _end_with_parent() -> None:
    """A killed parent must not leave processes behind that train on."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
