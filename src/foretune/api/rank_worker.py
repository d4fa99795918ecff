"""One process of a run that was started on several devices of this machine: `python -m foretune.api.rank_worker`.

The first process reports what happens to the one that started it. The others are silent.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretune.api.train import forecast_of
from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.importing import collector_paused, imported_at_use
from foretune.core.observer import Observer, StepReport
from foretune.core.observer_lines import LineObserver
from foretune.record.run_directory import RunDirectory
from foretune.training.launching import PIPE, REQUEST_VARIABLE
from foretune.training.ranks import STORE_VARIABLE, found_ranks

_SET_PARENT_DEATH_SIGNAL = 1


def main() -> None:
    from torch.distributed.elastic.multiprocessing.errors import record

    _end_with_parent()
    record(_main)()


def _main() -> None:
    scratch = Path(os.environ[REQUEST_VARIABLE])
    request = json.loads((scratch / "request.json").read_text(encoding="utf-8"))
    ranks = found_ranks()
    assert ranks is not None, "started by the elastic agent"
    # Each start has its own: a store remembers the processes that are gone.
    os.environ[STORE_VARIABLE] = str(scratch / f"store-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")
    if not ranks.is_first:
        _run(request, Observer(), is_first=False)
        return
    with (scratch / PIPE).open("w", encoding="utf-8") as file:
        teller = _FirstProcess(file)
        try:
            teller.tell("trained", **_run(request, teller, is_first=True))
        except UserError as error:
            teller.tell("refused", text=str(error))
            raise


class _FirstProcess(LineObserver):
    """Adds this process's peak to the report of a step: the process that shows it has another one."""

    def stepped(self, report: StepReport) -> None:
        from foretune.training.devices import available_devices, peak_device_bytes, peak_host_bytes

        peak_bytes = peak_device_bytes(available_devices()[0]) or peak_host_bytes()
        super().stepped(replace(report, peak_bytes=peak_bytes))


def _run(request: dict[str, Any], observer: Observer, *, is_first: bool) -> dict[str, Any]:
    with collector_paused(), imported_at_use("bitsandbytes"):
        from foretune.training.restarts import num_restarts
        from foretune.training.several import resume_in_ranks, train_in_ranks
    if "run" in request:
        trained = resume_in_ranks(RunDirectory.open(Path(request["run"])), observer, request["overrides"])
    else:
        asked = understand(request["mapping"], source=None, name=request["name"])
        # Started again, it continues a run that has its plan.
        plan = forecast_of(asked, observer) if is_first and not num_restarts() else None
        trained = train_in_ranks(asked, Path(request["runs"]), observer, plan)
    outcome = trained.record.outcome
    if outcome.status not in ("finished", "interrupted"):
        # The agent must see that a process failed: it ends the others, or starts all of them again.
        raise RunEnded(f"{outcome.status}: {outcome.reason}")
    return {
        "num_changed_tensors": trained.num_changed_tensors,
        "num_trained_tensors": trained.num_trained_tensors,
        "base_unchanged": trained.base_unchanged,
    }


class RunEnded(Exception):
    """The run failed, and its record says why."""


def _end_with_parent() -> None:
    """A killed parent must not leave processes behind that train on."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


if __name__ == "__main__":
    main()
