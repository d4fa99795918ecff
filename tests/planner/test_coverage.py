"""Without torch every model of the catalogue is planned for the choices that people make."""

import random
from collections.abc import Callable

import pytest

from foretune import catalog
from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.planner.asking import PlanRequest, asked_of, find_subject, plan_question
from foretune.planner.sizing import size_of, with_default_targets
from foretune.planner.traces import Traces, is_at_hand
from foretune.trace.stamps import sources_hash

BASES = ("int8", "float8", "nf4")
OPTIMIZERS = tuple(kind for kind in OPTIMIZER_SPECS if kind != "adamw")
LORA = (
    (),
    *((f"quantize.denoiser={base}",) for base in BASES),
    *((f"optimizer.kind={kind}",) for kind in OPTIMIZERS),
    ("levers.optimizer_offload=true",),
    ("levers.activation_offload=true",),
    ("method.dropout=0.1",),
    ("method.kind=rslora",),
    ("method.kind=dora",),
    ("method.kind=lokr",),
)
FULL = (
    (),
    ("optimizer.kind=adamw8bit",),
    ("optimizer.kind=adafactor",),
    ("train.weight_dtype=bf16",),
    ("train.weight_dtype=bf16", "optimizer.compensation=kahan"),
    ("train.weight_dtype=bf16", "optimizer.compensation=stochastic"),
    ("train.weight_dtype=bf16", "optimizer.kind=adamw8bit"),
    ("train.weight_dtype=bf16", "optimizer.kind=adafactor"),
    ("levers.fused_backward=true", "train.max_grad_norm=null", "train.gradient_accumulation=1"),
    ("levers.optimizer_offload=true",),
)
QUESTIONS = (*LORA, *(("method.kind=full", "accept=[distilled-base]", *choices) for choices in FULL))
"""What is typed behind `foretune plan MODEL`."""


def is_answered(model: str, overrides: tuple[str, ...]) -> bool:
    asked = asked_of(PlanRequest(target=model, overrides=overrides))
    subject = find_subject(asked.model, None)
    experiment = with_default_targets(asked.experiment, subject.geometry)
    return is_at_hand(Traces(), experiment, size_of(experiment, subject.geometry), subject.geometry)


@pytest.mark.parametrize("model", sorted(catalog.denoisers()))
def test_every_question_about_a_model_is_answered(model: str) -> None:
    assert [overrides for overrides in QUESTIONS if not is_answered(model, overrides)] == []


def test_what_is_answered_is_a_plan(
    proof_size: Callable[[int, int], int], report_figure: Callable[[str], None]
) -> None:
    """Others whenever the code that makes steps changes; at full size a tenth of all."""
    every = [(model, overrides) for model in sorted(catalog.denoisers()) for overrides in QUESTIONS]
    device = catalog.devices()["h100-sxm"]
    asked_for = random.Random(sources_hash()).sample(every, proof_size(len(every) // 10, 8))
    peaks = []
    for model, overrides in asked_for:
        wanted = PlanRequest(target=model, overrides=overrides, advice="none")
        (plan,) = plan_question(asked_of(wanted), wanted, [device], None)
        least_bytes = catalog.denoiser(model).num_params / 2
        assert plan.allocated_bytes > least_bytes, (model, overrides)
        peaks.append(plan.allocated_bytes)
    assert len(set(peaks)) > len(peaks) / 2, "different questions have different answers"
    report_figure(f"{len(every)} questions of {len(catalog.denoisers())} models are answered without torch")
