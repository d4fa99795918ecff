"""One process of a run, as a launcher would start it: `python -m tests.training.rank_program REQUEST`.

Prints one line of JSON: what this process saw.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.observer import Observer, StepReport
from foretune.record.run_directory import RunDirectory
from foretune.step.engine import own_part
from foretune.training.preparing import prepare
from foretune.training.ranks import Ranks, found_ranks, joined
from foretune.training.several import resume_in_ranks, train_in_ranks
from foretune.training.train import Trained


class Signalled(Observer):
    """Sends this process a signal after a step."""

    patience_s = 0.0

    def __init__(self, after: int) -> None:
        self._after = after

    def stepped(self, report: StepReport) -> None:
        if report.step + 1 == self._after:
            os.kill(os.getpid(), signal.SIGUSR1)


def trained(request: dict[str, Any]) -> dict[str, Any]:
    after = request.get("signal_after")
    observer = Observer() if after is None else Signalled(after)
    if "resume" in request:
        run = resume_in_ranks(RunDirectory.open(Path(request["resume"])), observer, request.get("overrides", ()))
    else:
        run = train_in_ranks(understand(request["mapping"], source=None), Path(request["runs"]), observer)
    return _told(run)


def _told(run: Trained) -> dict[str, Any]:
    return {
        "run": str(run.run.path),
        "status": run.record.outcome.status,
        "reason": run.record.outcome.reason,
        "steps_done": run.record.outcome.steps_done,
        "num_changed": run.num_changed_tensors,
        "base_unchanged": run.base_unchanged,
    }


def prepared(request: dict[str, Any]) -> dict[str, Any]:
    """Which samples this process takes, and how much of the weights it holds."""
    asked = understand(request["mapping"], source=None)
    ranks = found_ranks() or Ranks()
    with joined(asked.experiment.parallel, ranks, torch.device("cpu")):
        ready = prepare(asked.experiment, Path(request["mapping"]["model"]), Observer(), ranks)
        weights = [weight.detach() for weight in ready.step.denoiser.parameters()]
        num_batches = request.get("num_batches", 0)
        return {
            "indices": [list(ready.batch_maker[number].indices) for number in range(num_batches)],
            "num_weights": sum(weight.numel() for weight in weights),
            "num_own": sum(own_part(weight).numel() for weight in weights),
        }


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    request |= request.get("by_rank", {}).get(os.environ.get("RANK", "0"), {})
    try:
        answer = {"trained": trained, "prepared": prepared}[request["do"]](request)
    except UserError as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
