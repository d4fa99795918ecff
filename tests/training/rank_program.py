"""One process of a run, as a launcher would start it: `python -m tests.training.rank_program REQUEST`.

Prints one line of JSON: what this process saw.
"""

import dataclasses
import errno
import json
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file

from foretune.choices.running import Parallel
from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.observer import Observer, StepReport
from foretune.record.run_directory import RunDirectory
from foretune.step.engine import empty_part, own_part
from foretune.training import checkpoint_files
from foretune.training.checkpoint_files import Checkpoint
from foretune.training.checkpoints import CheckpointStore, OtherProcessFailed
from foretune.training.preparing import prepare
from foretune.training.ranks import Ranks, found_ranks, joined
from foretune.training.several import resume_in_ranks, train_in_ranks
from foretune.training.train import Trained


class Signalled(Observer):
    """Hears of each step at once, and sends this process a signal after one of them; after 0, never."""

    patience_s = 0.0

    def __init__(self, after: int) -> None:
        self._after = after

    def stepped(self, report: StepReport) -> None:
        if report.step + 1 == self._after:
            os.kill(os.getpid(), signal.SIGUSR1)


def trained(request: dict[str, Any]) -> dict[str, Any]:
    after = request.get("signal_after", 0 if "reports_at_once" in request else None)
    observer = Observer() if after is None else Signalled(after)
    if "fault_at_save" in request:
        _fail_at_save(request["fault_at_save"])
    if "resume" in request:
        run = resume_in_ranks(RunDirectory.open(Path(request["resume"])), observer, request.get("overrides", ()))
    else:
        run = train_in_ranks(understand(request["mapping"], source=None), Path(request["runs"]), observer)
    return _outcome_of(run)


def _fail_at_save(number: int) -> None:
    """From now on the save of this number, counted from 1, finds the disk full."""
    saves = count(1)

    def full(*arguments: Any, **options: Any) -> None:
        if next(saves) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(*arguments, **options)

    mock.patch.object(checkpoint_files, "save_file", full).start()


def _outcome_of(run: Trained) -> dict[str, Any]:
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


def left(request: dict[str, Any]) -> dict[str, Any]:
    """Leaves a group with a message under way: gloo's thread will need the GIL to release its tensor."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    ranks = found_ranks() or Ranks()
    with joined(Parallel(devices=ranks.size), ranks, torch.device("cpu")):
        engine = DistributedDataParallel(torch.nn.Linear(2, 2))
        message = torch.zeros(1)
        time.sleep(ranks.rank)
        dist.all_reduce(message, async_op=True)
    del engine
    return {"left": True}


def saved(request: dict[str, Any]) -> dict[str, Any]:
    """Two saves of made-up state in shards, the second one with a fault; then what this process reads back."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    ranks = found_ranks() or Ranks()
    with joined(Parallel(devices=ranks.size, timeout_s=30), ranks, torch.device("cpu")):
        shape = tuple(request["mesh"])
        mesh = init_device_mesh("cpu", shape)
        placements = [Replicate()] * (len(shape) - 1) + [Shard(0)]
        whole = {"a": torch.arange(35.0).reshape(7, 5), "b": torch.tensor([3.5])}
        parts = {name: distribute_tensor(tensor, mesh, placements) for name, tensor in whole.items()}
        checkpoint = Checkpoint(1, {"weights": {**parts, "count": torch.tensor(7)}}, {"scaler": {}})
        store = CheckpointStore(Path(request["directory"]), 2, ranks)
        store.write(checkpoint)
        faults = []
        if "fault" in request:
            error = OSError(errno.ENOSPC, "No space left on device")
            with mock.patch.object(checkpoint_files, request["fault"], side_effect=error):
                faults += _tried(store, dataclasses.replace(checkpoint, step=2))
        elif ranks.size > 1:
            faults += _tried(store, dataclasses.replace(checkpoint, step=2))
        found = store.read_newest(("weights",), place=lambda *facts: empty_part(parts["a"], facts[2], facts[3]))
        assert found is not None
        tensors = found[0].tensors["weights"]
        return {
            "faults": faults,
            "step": found[0].step,
            "own_numel": own_part(tensors["a"]).numel(),
            "is_equal": bool(torch.equal(own_part(tensors["a"]), own_part(parts["a"]))),
            "others": [tensors["b"].tolist(), tensors["count"].tolist()],
        }


def _tried(store: CheckpointStore, checkpoint: Checkpoint) -> list[str]:
    try:
        store.write(checkpoint)
    except (OSError, OtherProcessFailed) as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    request |= request.get("by_rank", {}).get(os.environ.get("RANK", "0"), {})
    try:
        answer = {"trained": trained, "prepared": prepared, "saved": saved, "left": left}[request["do"]](request)
    except UserError as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
