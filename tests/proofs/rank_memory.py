"""One of several processes that train a small model: `python -m tests.proofs.rank_memory REQUEST`.

Prints the most bytes that this process had allocated at once in each of its steps, by the profiler's own events.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from foretune.choices.experiment import Experiment
from foretune.models.family import Family
from foretune.step.building import assemble, build_step
from foretune.step.engine import ALONE, share
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.step.training_step import TrainingStep
from foretune.training.ranks import Ranks, found_ranks, joined
from tests.proofs.h14_cases import Case
from tests.proofs.h14_worker import batch

NUM_STEPS = 3
_STEP = "one step of the run"


@contextmanager
def fake_group(experiment: Experiment) -> Iterator[Ranks]:
    """One process that believes to be one of many: collectives return at once and take no memory of their own."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    size = experiment.parallel.devices
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield Ranks(0, size, 0, size, "nobody")
    finally:
        dist.destroy_process_group()


def measured(case: Case, parallel: dict[str, Any], *, is_fake: bool) -> list[int]:
    """The peak of each step."""
    asked = case.experiment()
    experiment = asked.model_copy(update={"parallel": type(asked.parallel).model_validate(parallel)})
    family, sizes = case.model(), case.sizes()
    torch.set_num_threads(case.num_threads)
    ranks = found_ranks() or Ranks()
    with joined(experiment.parallel, ranks, torch.device("cpu")) if not is_fake else fake_group(experiment) as ranks:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step = built(experiment, family, ranks)
            for number in range(NUM_STEPS):
                with record_function(_STEP):
                    batches = (batch(family, sizes) for _ in range(case.accumulation))
                    step(number, 1e-4, batches, case.accumulation)
        if not is_fake:
            ranks.wait()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    begins = sorted(event.start_ns() for event in events if event.name() == _STEP)
    peaks = [0] * NUM_STEPS
    live = 0
    for moment_ns, num_bytes in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        live += num_bytes
        index = sum(begin <= moment_ns for begin in begins) - 1
        if index >= 0:
            peaks[index] = max(peaks[index], live)
    return peaks


def built(experiment: Experiment, family: Family, ranks: Ranks) -> TrainingStep:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(METHODS[experiment.method.kind].load_dtype(PrecisionPolicy.of(experiment.train)))
    try:
        denoiser: nn.Module = family.denoiser_class()(**family.architecture.denoiser)
    finally:
        torch.set_default_dtype(previous)
    assembled = assemble(experiment, family, denoiser)
    device, engine = torch.device("cpu"), ALONE
    assembled.levers.place(denoiser, device)
    if ranks.size > 1:
        parallel, gathers_in_bf16 = experiment.parallel, experiment.gathers_in_bf16
        engine = share(
            denoiser, family, parallel.sharding, device, parallel.shard_devices, gathers_in_bf16=gathers_in_bf16
        )
    return build_step(experiment, family, assembled, device, engine=engine)


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(measured(Case(**request["case"]), request["parallel"], is_fake=request.get("is_fake", False))))


if __name__ == "__main__":
    main()
