"""8-bit optimizers keep fp32 state for small tensors: plans decide by the size of each tensor at the requested rank."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm
from foretune.choices.training import Levers, Optimizer
from foretune.core.values.step_trace import StepTrace
from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.planner.block_events import state_8bit_bytes
from foretune.planner.composing.forms import composed_trace, composition_of
from foretune.planner.expansion import expand
from foretune.planner.streams import device_events
from foretune.step.optimizing import build_optimizer
from foretune.step.training_step import TrainingStep
from foretune.trace.making import make_step_trace
from foretune.trace.recorder import Recorder
from foretune.trace.tracing import StepSizes, trace_step

pytestmark = pytest.mark.usefixtures("operators_are_remembered")


def state_bytes(trace: StepTrace, rank: int) -> Counter[int]:
    """Returns how many tensors of state have how many bytes."""
    events = device_events(expand(trace, (1, 64, 16, rank)))
    return Counter(e.num_bytes for e in events if e.category == "optimizer state" and e.num_bytes)


@pytest.mark.parametrize("num_weights", [1, 4095, 4096, 4097, 40_000])
@pytest.mark.parametrize(("kind", "num_averages"), [("adamw8bit", 2), ("lion8bit", 1)])
def test_bytes_are_those_of_the_librarys_state(kind: str, num_averages: int, num_weights: int) -> None:
    weight = nn.Parameter(torch.zeros(num_weights))
    updater = build_optimizer(Optimizer(kind=kind), [weight], foreach=None, levers=Levers())
    weight.grad = torch.zeros(num_weights)
    updater.step()
    kept = sorted(state.nbytes for state in updater.kept(weight))
    assert kept == sorted(state_8bit_bytes(num_weights) * num_averages)


def test_a_shipped_step_has_fp32_state_at_small_ranks_only() -> None:
    composition = composition_of(
        StepForm(model="flux.1-dev", method="lora", is_checkpointed=True, others=(("optimizer.kind", "adamw8bit"),))
    )
    assert composition is not None
    trace = composed_trace(composition)
    small, large = state_bytes(trace, 1), state_bytes(trace, 64)
    # Most layers have 3,072 inputs or outputs.
    assert small[3072 * 4] > large[3072 * 4]
    assert large[3072 * 64] == large[3072 * 64 // 256 * 4] > 0


@pytest.fixture(scope="module")
def family(tiny_pipeline: Callable[..., Path]) -> Family:
    return open_family(tiny_pipeline("flux"))


@pytest.mark.parametrize("rank", [8, 128])
def test_a_recorded_step_has_the_state_of_a_step_at_that_rank(rank: int, family: Family) -> None:
    """The recording is made at small ranks; bytes are compared with those of the optimizer's tensors."""
    experiment = Experiment.model_validate(
        {
            "model": "tiny",
            "method": {"kind": "lora", "rank": rank},
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "precision": "fp32"},
            "optimizer": {"kind": "adamw8bit"},
        }
    )
    sizes = StepSizes(batch_size=1, height_px=32, width_px=32, num_text_tokens=16)
    trace = make_step_trace(experiment, family, "cuda", num_text_tokens=16)
    trained: list[int] = []

    def note_sizes(step: TrainingStep, _: Recorder) -> None:
        trained.extend(weight.numel() for weight in step.trained.values())

    trace_step(experiment, family, sizes, "cuda", watch=note_sizes)
    expected = Counter(num_bytes for number in trained for num_bytes in state_8bit_bytes(number) * 2)
    found = state_bytes(trace, rank)
    assert {num_bytes: found[num_bytes] for num_bytes in expected} == dict(expected)
