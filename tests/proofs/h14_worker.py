"""Trains one case after another, each in a process of its own, and says how much memory it took.

Run as a program it reads a JSON object a line, forks, and prints what the child found, again as JSON. The program
itself never computes, so a child is as fresh as one that has just imported torch.
"""

import gc
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from foretune.data.batch import Batch
from foretune.models.family import Family
from foretune.step.building import assemble, build_step
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.step.training_step import TrainingStep
from foretune.trace.tracing import StepSizes
from tests.proofs.h14_cases import Case, Training
from tests.proofs.h14_cells import CellCase, case_of

NUM_STEPS = 2
_STEPS_BEGIN = "the steps begin"


def train(case: Training, *, is_marked: bool = False) -> None:
    """Builds the model and trains it for two steps: the second is like all that would follow."""
    family, sizes, accumulation = case.model(), case.sizes(), case.accumulation
    step = build(case, family)
    with record_function(_STEPS_BEGIN if is_marked else "-"):
        pass
    for number in range(NUM_STEPS):
        step(number, 1e-4, (batch(family, sizes) for _ in range(accumulation)), accumulation)


def measured_by_process(case: Case | CellCase) -> dict[str, Any]:
    """Growth of the resident memory, at its highest, over what the process had after the smallest training."""
    before = _status_bytes("VmRSS")
    train(case)
    high = _status_bytes("VmHWM")
    gc.collect()
    return {"growth_bytes": high - before, "baseline_bytes": before, **measured_by_profiler(case)}


def measured_by_profiler(case: Training) -> dict[str, Any]:
    """The most bytes that were allocated at once during the steps, from the profiler's own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(case, is_marked=True)
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    begin_ns = next(event.start_ns() for event in events if event.name() == _STEPS_BEGIN)
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    live = peak = num_bytes_before = 0
    for moment_ns, num_bytes in changes:
        live += num_bytes
        if moment_ns < begin_ns:
            num_bytes_before = live
        else:
            peak = max(peak, live)
    return {"peak_bytes": peak, "built_bytes": num_bytes_before}


def trained_under_limit(case: Case | CellCase, limit_bytes: int) -> dict[str, Any]:
    """Whether the training ends when the process may not have more private memory than that on top of what it has."""
    allowed = _status_bytes("VmData") + limit_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    try:
        train(case)
    except (MemoryError, RuntimeError) as error:
        return {"has_finished": False, "reason": f"{type(error).__name__}: {str(error)[:80]}"}
    return {"has_finished": True}


def build(case: Training, family: Family) -> TrainingStep:
    asked = case.experiment()
    previous = torch.get_default_dtype()
    # Made in the type that loading would give them.
    torch.set_default_dtype(METHODS[asked.method.kind].load_dtype(PrecisionPolicy.of(asked.train)))
    try:
        denoiser: nn.Module = family.denoiser_class()(**family.architecture.denoiser)
    finally:
        torch.set_default_dtype(previous)
    assembled = assemble(asked, family, denoiser)
    assembled.levers.place(denoiser, torch.device("cpu"))
    return build_step(asked, family, assembled, torch.device("cpu"))


def batch(family: Family, sizes: StepSizes) -> Batch:
    latent = (sizes.batch_size, *family.latent_shape(sizes.height_px, sizes.width_px))
    specs = family.conditioning_specs(sizes.batch_size, sizes.num_text_tokens)
    return Batch(
        step=0,
        micro=0,
        indices=tuple(range(sizes.batch_size)),
        captions=("",) * sizes.batch_size,
        images=None if family.has_latents else torch.zeros(latent),
        moments=torch.zeros(latent[0], latent[1] * 2, *latent[2:]) if family.has_latents else None,
        conditioning={name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()},
        noise=torch.ones(latent),
        posterior_noise=torch.ones(latent) if family.has_latents else None,
        uniform=torch.full((sizes.batch_size,), 0.5, dtype=torch.float64),
    )


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    case = case_of(request["case"])
    torch.set_num_threads(case.num_threads)
    train(case.tiny())
    gc.collect()
    if request["limit_bytes"] is not None:
        return trained_under_limit(case, request["limit_bytes"])
    return measured_by_process(case)


def _in_child(request: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.dup2(2, 1)  # what libraries print is no answer
        os.write(writer, json.dumps(_answer(request)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"has_finished": False, "reason": f"ended with status {status}"}


def main() -> None:
    import diffusers  # noqa: F401 - here, so that no child pays for it
    import peft  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(_in_child(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
