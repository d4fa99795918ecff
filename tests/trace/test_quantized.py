"""Steps through a quantised base on fake tensors against the same steps really run, and what a GPU is said to need."""

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from foretune.choices.experiment import Experiment
from foretune.choices.quantize import Quantize
from foretune.choices.step_form import StepForm, TrainerHabits
from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.step.quantizing import quantize_denoiser
from foretune.step.quantizing.applying import quantizing_with
from foretune.trace.making import TORCHAO_AUTOGRAD, habits_of
from foretune.trace.recorder import Allocation
from foretune.trace.tracing import Numerics, StepSizes, TracedStep, trace_step
from tests.cpu_kernels import tolerance
from tests.trace.test_truth import measured_peak_bytes

SIZES = StepSizes(batch_size=4, height_px=128, width_px=128, num_text_tokens=32)
FEWER_BITS = ["int8", "float8", "float8-dynamic", "nf4", "int8-bnb"]


def small_family(folder: Any) -> Family:
    """One block of each kind: what a layer keeps is the same in all of them."""
    family = open_family(folder)
    return family.with_depths((1,) * len(family.block_kinds()))


def as_trained_by(program: str | None) -> AbstractContextManager[None]:
    return quantizing_with(TORCHAO_AUTOGRAD if program == "torchao" else {})


def asked(kind: str, *, precision: str = "bf16", share: float = 0.0, method: str = "lora", **choice: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "model": "tiny",
            "method": {"kind": method} | ({"rank": 4} if method == "lora" else {}),
            "data": {"kind": "shapes"},
            "train": {"steps": 2, "precision": precision},
            "levers": {"gradient_checkpointing": share},
            "quantize": {"denoiser": kind, **choice},
        }
    )


def peak_of(step: TracedStep) -> int:
    live = peak = 0
    sizes = {event.number: event.num_bytes for event in step.recording.events if isinstance(event, Allocation)}
    for event in step.recording.events:
        live += sizes[event.number] if isinstance(event, Allocation) else -sizes[event.number]
        peak = max(peak, live)
    return peak


def frozen_bytes(traced: TracedStep) -> int:
    return sum(
        event.num_bytes
        for event in traced.recording.events
        if isinstance(event, Allocation) and traced.categories.get(event.number) == "frozen weights"
    )


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("name", "kind", "choices"),
    [
        ("flux", "int8", {"share": 1.0}),
        ("flux", "float8", {"precision": "fp32"}),
        ("flux", "float8-dynamic", {"share": 1.0}),
        ("flux", "float8-training", {"method": "full", "precision": "fp32"}),
        ("flux", "nf4", {"share": 1.0}),
        ("flux", "float8-dynamic", {"autograd": "torchao"}),
        ("sd3", "nf4", {"precision": "fp32"}),
        ("sd3", "int8-bnb", {"share": 1.0, "precision": "fp32"}),
    ],
)
def test_traced_memory_is_the_real_one(tiny_pipeline, name, kind, choices) -> None:
    family = small_family(tiny_pipeline(name))
    choices = dict(choices)
    with as_trained_by(choices.pop("autograd", None)):
        experiment = asked(kind, **choices)
        truth = measured_peak_bytes(experiment, family, SIZES)
        assert peak_of(trace_step(experiment, family, SIZES, "cpu")) == pytest.approx(truth, rel=tolerance(0.01))


def traced(family: Family, numerics: Numerics, kind: str, **choices: Any) -> TracedStep:
    return trace_step(asked(kind, **choices), family, SIZES, numerics)


@pytest.mark.parametrize("kind", FEWER_BITS)
def test_weights_are_counted_by_their_bits(tiny_pipeline, kind) -> None:
    family = small_family(tiny_pipeline("flux"))
    dense, quantised = (traced(family, "cuda", asked_kind) for asked_kind in ("none", kind))
    denoiser = family.denoiser_on_meta(torch.bfloat16)
    done = quantize_denoiser(Quantize.model_validate({"denoiser": kind}), family, denoiser)
    assert done is not None
    assert frozen_bytes(dense) - frozen_bytes(quantised) == done.num_dense_bytes - done.num_bytes > 0
    assert quantised.num_params == dense.num_params


def test_a_gpu_multiplies_8_bit_numbers_and_a_cpu_wider_ones(tiny_pipeline) -> None:
    """Inputs are rounded on both; on a CPU they are widened again."""
    family = small_family(tiny_pipeline("flux"))
    on_gpu, on_cpu = (traced(family, numerics, "float8-dynamic") for numerics in ("cuda", "cpu"))

    def num_matrix_products(step: TracedStep) -> int:
        return sum(operation.kind == "matmul" for operation in step.recording.operations)

    def num_float8(step: TracedStep) -> int:
        return sum(isinstance(e, Allocation) and e.dtype == "float8_e4m3fn" for e in step.recording.events)

    assert num_float8(on_gpu) == num_float8(on_cpu) > 0
    assert num_matrix_products(on_gpu) == num_matrix_products(on_cpu)


def test_lean_keeps_less_than_a_dense_base_and_torchao_more(tiny_pipeline) -> None:
    family = small_family(tiny_pipeline("sd3"))
    sizes = StepSizes(batch_size=1, height_px=32, width_px=32, num_text_tokens=8)

    def peak(kind: str, *, torchao_autograd: bool = False) -> int:
        experiment = asked(kind)
        form = StepForm.of(experiment, is_checkpointed=False, habits=TrainerHabits(torchao_autograd=torchao_autograd))
        with habits_of(form):
            return peak_of(trace_step(experiment, family, sizes, "cuda"))

    dense = peak("none")
    assert peak("float8") < dense < peak("float8", torchao_autograd=True)
    assert peak("float8-dynamic") < peak("float8-dynamic", torchao_autograd=True)
    assert peak("float8") < dense, "as before: a habit is entered for one recording"


def test_float8_training_keeps_its_weights(tiny_pipeline) -> None:
    family = small_family(tiny_pipeline("flux"))
    dense, training = (traced(family, "cuda", kind) for kind in ("none", "float8-training"))
    assert frozen_bytes(training) == frozen_bytes(dense)
    assert any(isinstance(e, Allocation) and e.dtype == "float8_e5m2" for e in training.recording.events)


def test_work_of_integers_is_counted(tiny_pipeline) -> None:
    """Products of integers are as many as those of a dense base."""
    family = small_family(tiny_pipeline("flux"))

    def num_flops(kind: str) -> int:
        return sum(operation.flops for operation in traced(family, "cuda", kind).recording.operations)

    assert num_flops("int8-bnb") == num_flops("float8-dynamic") == num_flops("none")
