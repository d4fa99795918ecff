"""A StepForm: what of an experiment decides which operators run, and a name for it."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.choices.quantize import DenoiserNumbers, Quantize
from foretune.choices.step_form import NO_HABITS, StepForm, TrainerHabits
from foretune.choices.training import Levers


def made(**choices: Any) -> StepForm:
    return StepForm(**choices)


FORMS = [
    made(
        model=model,
        method="lora",
        precision=precision,
        weights=weights,
        compensation=compensation,
        targets=targets,
        has_dropout=has_dropout,
        is_checkpointed=is_checkpointed,
        numerics=numerics,
    )
    for model, (precision, weights, compensation), targets, has_dropout, is_checkpointed, numerics in product(
        ("flux.1-dev", "sd3-medium"),
        (
            ("fp32", "fp32", "none"),
            ("bf16", "fp32", "none"),
            ("bf16", "bf16", "none"),
            ("bf16", "bf16", "kahan"),
        ),
        (None, ("to_q", "to_k"), ("to_k", "to_q")),
        (False, True),
        (False, True),
        ("cuda", "cpu"),
    )
]
FULL = [
    made(model="flux.1-dev", method="full", weights=weights, compensation=compensation, is_checkpointed=again)
    for (weights, compensation), again in product(
        (("fp32", "none"), ("bf16", "none"), ("bf16", "kahan")), (False, True)
    )
]


def asked(method: dict[str, Any] | None = None, share: float = 0.0, **train: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "model": "flux.1-dev",
            "method": method or {"kind": "lora", "rank": 8},
            "data": {"kind": "shapes"},
            "train": {"steps": 3, **train},
            "levers": {"gradient_checkpointing": share},
        }
    )


@pytest.mark.parametrize("form", [*FORMS, *FULL], ids=StepForm.slug)
def test_the_experiment_of_a_form_has_that_form(form: StepForm) -> None:
    found = StepForm.of(form.experiment(), is_checkpointed=form.is_checkpointed, numerics=form.numerics)
    assert found == form
    assert form.experiment().levers.gradient_checkpointing == (1.0 if form.is_checkpointed else 0.0)


def test_a_habit_of_another_program_is_a_form_of_its_own() -> None:
    """Only where it changes anything: without offload nothing is moved or left."""
    habits = TrainerHabits(leaves_stay=True, torchao_autograd=True)
    offloading = asked().model_copy(update={"levers": Levers(activation_offload=True)})
    ours, theirs = (StepForm.of(offloading, is_checkpointed=True, habits=each).slug() for each in (NO_HABITS, habits))
    assert theirs == f"{ours}.leaves-stay"
    assert StepForm.of(asked(), is_checkpointed=True, habits=habits).habits == NO_HABITS


@pytest.mark.parametrize(
    ("denoiser", "word"),
    [
        ("int8", ".derivative-torchao"),
        ("float8", ".derivative-torchao"),
        ("float8-dynamic", ".derivative-torchao"),
        ("nf4", ""),
        ("int8-bnb", ""),
        ("float8-training", ""),
    ],
)
def test_torchaos_autograd_is_a_habit_with_layers_of_torchao(denoiser: DenoiserNumbers, word: str) -> None:
    quantised = asked().model_copy(update={"quantize": Quantize(denoiser=denoiser, keep=())})
    form = StepForm.of(quantised, is_checkpointed=True, habits=TrainerHabits(torchao_autograd=True))
    assert form.slug() == f"flux.1-dev.lora.bf16.checkpointed.{denoiser}{word}.keep-71857576257465c7"
    assert form.experiment() == replace(form, habits=NO_HABITS).experiment(), "no experiment can choose it"


def test_every_form_has_a_name_of_its_own_that_a_file_can_have() -> None:
    slugs = [form.slug() for form in (*FORMS, *FULL)]
    assert len(set(slugs)) == len(slugs) == 4 * 3 * 16 + 6
    assert all(set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-_") for slug in slugs)
    assert all(len(slug) < 120 for slug in slugs)


def test_a_name_says_what_it_is() -> None:
    assert StepForm(model="flux.1-dev", method="lora").slug() == "flux.1-dev.lora.bf16.kept"
    named = StepForm(
        model="m", method="lora", weights="bf16", compensation="kahan", has_dropout=True, is_checkpointed=True
    )
    assert named.slug() == "m.lora.bf16.checkpointed.bf16-weights.kahan.dropout"


def test_tf32_has_the_form_of_fp32_and_fp16_has_its_own() -> None:
    def form(precision: str) -> StepForm:
        return StepForm.of(asked(precision=precision), is_checkpointed=False)

    assert form("tf32") == form("fp32")
    assert len({form(precision) for precision in ("fp32", "bf16", "fp16")}) == 3
    assert form("fp16").slug() == form("bf16").slug().replace("bf16", "fp16")


@pytest.mark.parametrize(
    "other",
    [
        asked({"kind": "lora", "rank": 64, "alpha": 3}),
        asked(batch_size=7),
        asked(gradient_accumulation=4),
        asked(ema={}),
        asked(max_grad_norm=None),
        asked(share=0.5),
    ],
)
def test_sizes_and_what_is_added_later_do_not_change_a_form(other: Experiment) -> None:
    assert StepForm.of(other, is_checkpointed=False) == StepForm.of(asked(), is_checkpointed=False)


@pytest.mark.parametrize(
    "other",
    [
        asked({"kind": "full"}),
        asked({"kind": "lora", "rank": 8, "dropout": 0.05}),
        asked({"kind": "lora", "rank": 8, "targets": ["to_q"]}),
        asked(weight_dtype="bf16"),
        asked(precision="fp32"),
    ],
)
def test_what_changes_the_operators_changes_the_form(other: Experiment) -> None:
    assert StepForm.of(other, is_checkpointed=False) != StepForm.of(asked(), is_checkpointed=False)


def test_an_experiment_of_a_form_is_whole() -> None:
    """Recording takes the experiment as training does, so it must be one that can be read."""
    experiment = FULL[-1].experiment()
    assert Experiment.from_mapping(experiment.to_mapping()) == experiment


def with_levers(**levers: Any) -> Experiment:
    experiment = asked(share=1.0)
    return experiment.model_copy(update={"levers": experiment.levers.model_copy(update=levers)})


def others(experiment: Experiment, *, is_checkpointed: bool = True) -> dict[str, Any]:
    return dict(StepForm.of(experiment, is_checkpointed=is_checkpointed).others)


def test_segments_are_a_form_of_their_own_and_strides_choose_among_blocks() -> None:
    assert others(with_levers(checkpoint_stride=4)) == {}
    in_twos = {"levers.checkpoint_segment": 2}
    assert others(with_levers(checkpoint_segment=2)) == in_twos
    assert others(with_levers(checkpoint_segment=2), is_checkpointed=False) == in_twos
    assert others(with_levers(checkpoint_segment=2, checkpoint_stride=4)) == in_twos
    # These overlap with no others, so what repeats is a segment with the block behind it.
    assert others(with_levers(checkpoint_segment=2, checkpoint_stride=3)) == {**in_twos, "levers.checkpoint_stride": 3}
    assert others(with_levers(checkpoint_segment=2, gradient_checkpointing=0.0), is_checkpointed=False) == {}
    assert others(with_levers(checkpoint_parts="feed_forward"), is_checkpointed=False) == {}


def test_a_lokr_has_a_form_for_each_rank() -> None:
    """Its matrices are kept whole from some rank on, which depends on each layer's size."""
    forms = [
        StepForm.of(asked({"kind": kind, "rank": rank}), is_checkpointed=True)
        for kind, rank in (("lokr", 4), ("lokr", 64), ("lora", 4), ("lora", 64))
    ]
    assert forms[0] != forms[1]
    assert forms[2] == forms[3]
    assert forms[0].experiment().method.model_dump()["rank"] == 4


def test_fused_kernels_of_attention_are_one_form_on_a_gpu() -> None:
    for kernel in ("flash", "efficient", "cudnn"):
        assert others(with_levers(attention=kernel)) == {}
    assert others(with_levers(attention="math")) == {"levers.attention": "math"}
    on_cpu = StepForm.of(with_levers(attention="flash"), is_checkpointed=True, numerics="cpu")
    assert on_cpu.others == (("levers.attention", "flash"),)
