"""One rank of several on simulated devices, for many requests: each line on its standard input is one.

It answers each by a line of JSON. Starting a rank takes seconds, so that tests share the ranks of `ranks.py`.
"""

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import simaccel
from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.step.training_step import StepOutcome, TrainingStep
from foretune.training import sampling, session, validating
from foretune.training.places import DevicePlace
from foretune.training.several import resume_in_ranks, train_in_ranks
from tests.proofs.stopping import Died, dying_in_window, restless_scaler
from tests.training.rank_runs import RANK_VARIABLES


def trained(request: dict[str, Any]) -> dict[str, Any]:
    """Trains or resumes a run on one device or on all of them."""
    with ExitStack() as stack:
        for patch in _patches(request):
            stack.enter_context(patch)
        return _trained(request)


def _patches(request: dict[str, Any]) -> Iterator[AbstractContextManager[object]]:
    """Stand-ins: the name of the host, sensors that report the power of each GPU, a denoiser that samples slowly,
    memory of the device that something else holds in this process, a signal to it or its death, a restless scaler.
    """
    if "held_bytes" in request:
        yield nullcontext(torch.empty(request["held_bytes"], dtype=torch.uint8, device="cuda"))
    if "host" in request:
        yield mock.patch.object(socket, "gethostname", return_value=request["host"])
    if "power_w" in request:
        yield mock.patch.object(session, "open_sensors", lambda places: [SteadyPower(places, request["power_w"])])
    if "signal_after" in request or "die_after" in request:
        yield stopping(request.get("signal_after"), request.get("die_after"))
    if "die_in" in request:
        yield dying_in_window(*request["die_in"])
    if "loss_scale" in request:
        yield restless_scaler(request["loss_scale"])
    if "call_s" in request:
        sample = sampling.sample

        def slow_sample(family: Any, pipeline: Any, *arguments: Any) -> Any:
            denoiser = getattr(pipeline, family.denoiser_part)
            handle = denoiser.register_forward_pre_hook(lambda *_: time.sleep(request["call_s"]))
            try:
                return sample(family, pipeline, *arguments)
            finally:
                handle.remove()

        yield mock.patch.object(validating, "sample", slow_sample)


@contextmanager
def stopping(signal_after: int | None, die_after: int | None) -> Iterator[None]:
    """A signal to this process with the last of so many steps, or its death before the next one."""
    make_step = TrainingStep.__call__

    def stopped(training: TrainingStep, step: int, *arguments: Any) -> StepOutcome:
        if step == die_after:
            raise Died
        outcome = make_step(training, step, *arguments)
        if step + 1 == signal_after:
            signal.raise_signal(signal.SIGTERM)
        return outcome

    with mock.patch.object(TrainingStep, "__call__", stopped):
        yield


class SteadyPower:
    """A sensor of the GPUs at some places."""

    def __init__(self, places: Sequence[DevicePlace], power_w: float | None) -> None:
        self._places, self._power_w = places, power_w

    def read(self) -> dict[str, dict[str, Any]]:
        if self._power_w is None:
            return {}
        return {f"nvidia:{place.uuid}": {"power_w": self._power_w} for place in self._places}

    def close(self) -> None:
        self._places = ()


def num_fused_updates() -> int:
    """How many calls have updated weights, moments and counts at once."""
    return sum(count for name, count in simaccel.device.kernel_counts().items() if "_fused_adamw_" in name)


def _trained(request: dict[str, Any]) -> dict[str, Any]:
    before = num_fused_updates()
    if "resume" in request:
        run = resume_in_ranks(RunDirectory.open(Path(request["resume"])), Observer(), request.get("overrides", ()))
    else:
        run = train_in_ranks(understand(request["mapping"], source=None), Path(request["runs"]), Observer())
    outcome = run.record.outcome
    return {
        "run": str(run.run.path),
        "status": outcome.status,
        "reason": outcome.reason,
        "num_changed": run.num_changed_tensors,
        "base_unchanged": run.base_unchanged,
        "num_updates": num_fused_updates() - before,
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """What a request came to, with what the simulated device found meanwhile."""
    variables = {name: request["store"] if name == RANK_VARIABLES[-1] else os.environ[name] for name in RANK_VARIABLES}
    with mock.patch.dict(os.environ, variables | request.get("variables", {})):
        if request.get("alone"):
            for name in RANK_VARIABLES:
                del os.environ[name]
        try:
            answer = DO[request["do"]](request)
        except Died:
            answer = {"died": True}
        except UserError as error:
            answer = {"refused": str(error)}
        except Exception:  # noqa: BLE001 - the test shows it
            answer = {"error": traceback.format_exc()}
    torch.cuda.synchronize()
    return answer | {"findings": simaccel.device.findings(True)}


DO = {"trained": trained}


def main() -> None:
    # What libraries print goes to the log, not between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer_to(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
