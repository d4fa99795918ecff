"""What goes together, and what is said where it does not."""

from typing import Any

import pytest

from foretune import catalog
from foretune.catalog import TRAINABLE, family_of_pipeline
from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections import Objection

SHARDED = {"devices": 2, "sharding": "full"}


def experiment(**changes: Any) -> Experiment:
    base = {"model": "flux.1-dev", "data": {"kind": "shapes"}, "train": {"steps": 10}}
    return Experiment.model_validate({**base, **changes})


def only(found: tuple[Objection, ...]) -> Objection:
    (objection,) = found
    return objection


@pytest.mark.parametrize("family", TRAINABLE)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_is_supported_meets_no_objection(family: str, method: str, precision: str) -> None:
    asked = experiment(method={"kind": method}, train={"steps": 10, "precision": precision})
    assert objections(asked, family, distilled=False) == ()
    assert objections(asked, family, distilled=None) == ()


def test_trainable_families_are_families_of_the_catalogue() -> None:
    assert set(TRAINABLE) <= {row.family for row in catalog.denoisers().values()}


@pytest.mark.parametrize("family", ["flux2", "hidream"])
def test_another_family_is_refused_with_those_that_can_be(family: str) -> None:
    hint = f"Trainable: {', '.join(sorted(TRAINABLE))}."
    found = only(objections(experiment(), family, distilled=False))
    assert found.severity == "refused"
    assert found.text == f"model: models of the family {family!r} cannot be trained yet. {hint}"


@pytest.mark.parametrize(
    ("family", "sections", "text"),
    [
        ("ddpm", {"data": {"kind": "shapes", "caption_dropout": 0.1}}, "data.caption_dropout has no effect"),
        ("sdxl", {"data": {"kind": "shapes", "max_text_tokens": 64}}, "data.max_text_tokens has no effect"),
        ("sd1", {"objective": {"shift": 3.0}}, "objective.shift has no effect"),
        ("pixart", {"objective": {"timestep_density": "logit_normal"}}, "objective.timestep_density has no effect"),
    ],
)
def test_a_setting_without_effect_is_a_warning_where_it_has_none(
    family: str, sections: dict[str, Any], text: str
) -> None:
    found = only(objections(experiment(**sections), family, distilled=False))
    assert found.severity == "warning"
    assert found.text.startswith(text)
    assert objections(experiment(**sections), "sd3", distilled=False) == ()


def test_fp16_without_scaling_is_refused_with_two_ways_out() -> None:
    asked = experiment(train={"steps": 10, "precision": "fp16", "loss_scaling": "off"})
    found = only(objections(asked, "sd3", distilled=False))
    assert found.severity == "refused"
    assert found.text.startswith("train.loss_scaling: fp16 without loss scaling")
    assert "train.loss_scaling=dynamic" in found.text
    assert "train.precision=bf16" in found.text


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_scaling_does_not_matter_elsewhere(precision: str) -> None:
    asked = experiment(train={"steps": 10, "precision": precision, "loss_scaling": "off"})
    assert objections(asked, "sd3", distilled=False) == ()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_bf16_weights_are_refused_in_another_precision(precision: str) -> None:
    train = {"steps": 10, "precision": precision, "weight_dtype": "bf16"}
    asked = experiment(train=train, optimizer={"compensation": "kahan", "betas": [0.9, 0.99]})
    found = only(objections(asked, "flux", distilled=False))
    assert found.severity == "refused"
    assert "train.precision=bf16, or train.weight_dtype=fp32" in found.text


def test_compensation_of_fp32_weights_is_refused_with_two_ways_out() -> None:
    found = only(objections(experiment(optimizer={"compensation": "kahan"}), "flux", distilled=False))
    assert found.severity == "refused"
    assert "optimizer.compensation=none, or train.weight_dtype=bf16" in found.text


def test_what_bf16_weights_lose_is_warned_about() -> None:
    train = {"steps": 10, "weight_dtype": "bf16"}
    lost, stuck = objections(experiment(train=train), "flux", distilled=False)
    assert (lost.severity, stuck.severity) == ("warning", "warning")
    assert "optimizer.compensation=kahan" in lost.text
    assert "optimizer.betas=[0.9,0.99]" in stuck.text
    fixed = experiment(train=train, optimizer={"compensation": "kahan", "betas": [0.9, 0.99]})
    assert objections(fixed, "flux", distilled=False) == ()


def test_more_devices_are_trained_on_and_planned() -> None:
    asked = experiment(parallel={"devices": 2, "sharding": "full"})
    assert objections(asked, "flux", distilled=False) == ()
    assert objections(asked, "flux", distilled=False, only_planned=True) == ()


def test_a_plan_must_be_told_how_many_devices_a_node_has() -> None:
    asked = experiment(parallel={"devices": 16, "sharding": "hybrid"})
    assert objections(asked, "flux", distilled=False) == ()
    found = only(objections(asked, "flux", distilled=False, only_planned=True))
    assert found.severity == "refused"
    assert "Nearest: parallel.shard_devices=8" in found.text


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"parallel": {"sharding": "full"}}, "parallel.sharding: full takes several devices"),
        ({"parallel": {"devices": 4, "shard_devices": 2}}, "parallel.shard_devices is for parallel.sharding=hybrid"),
        (
            {"parallel": {"devices": 4, "sharding": "hybrid", "shard_devices": 3}},
            "4 devices are not several groups of 3",
        ),
        (
            {"parallel": {"devices": 2}, "levers": {"fused_backward": True}, "train": {"max_grad_norm": None}},
            "levers.fused_backward: it updates weights before",
        ),
        ({"parallel": SHARDED, "quantize": {"denoiser": "int8"}}, "a quantised base is not sharded yet"),
        ({"parallel": SHARDED, "train": {"precision": "fp16"}}, "Nearest: train.precision=bf16"),
        ({"parallel": SHARDED, "optimizer": {"kind": "adafactor"}}, "the state of this optimizer is not sharded yet"),
        ({"parallel": SHARDED, "levers": {"block_swap": 1}}, "sharded blocks are gathered, not swapped"),
        ({"parallel": SHARDED, "levers": {"optimizer_offload": True}}, "not with sharding yet"),
        ({"parallel": SHARDED, "levers": {"activation_offload": True}}, "levers.activation_offload: "),
        ({"parallel": SHARDED, "method": {"kind": "dora"}}, "method.kind: dora is not sharded yet"),
    ],
)
def test_what_several_devices_cannot_do_is_refused_with_the_nearest(sections: dict[str, Any], words: str) -> None:
    sections["train"] = {"steps": 10, **sections.get("train", {})}
    texts = [one.text for one in objections(experiment(**sections), "flux", distilled=False)]
    assert any(words in text for text in texts)
    assert all("Nearest" in text for text in texts if "shard" in text)


def test_captions_of_a_model_without_text_are_warned_about() -> None:
    asked = experiment(data={"kind": "shapes", "caption_dropout": 0.1})
    assert only(objections(asked, "ddpm", distilled=False)).severity == "warning"
    assert only(objections(asked, "dit", distilled=False, only_planned=True)).severity == "warning"
    assert objections(asked, "flux", distilled=False) == ()


def test_full_fine_tuning_of_a_distilled_base_is_refused_with_three_ways_out() -> None:
    found = only(objections(experiment(method={"kind": "full"}), "flux", distilled=True))
    assert found.severity == "refused"
    for way_out in ("method.kind=lora", "flux.1-dev", "accept=[distilled-base]"):
        assert way_out in found.text


def test_a_risk_that_is_accepted_is_only_warned_about() -> None:
    asked = experiment(method={"kind": "full"}, accept=["distilled-base"])
    assert only(objections(asked, "flux", distilled=True)).severity == "warning"


def test_an_adapter_on_a_distilled_base_is_warned_about() -> None:
    found = only(objections(experiment(), "flux", distilled=True))
    assert found.severity == "warning"
    assert "flux.1-dev" in found.text


def test_all_objections_come_at_once() -> None:
    asked = experiment(
        method={"kind": "full"},
        train={"steps": 10, "precision": "fp16", "loss_scaling": "off"},
        parallel={"devices": 4, "shard_devices": 2},
    )
    assert [found.severity for found in objections(asked, "flux", distilled=True)] == ["refused"] * 3


@pytest.mark.parametrize("family", TRAINABLE)
def test_a_pipeline_leads_to_its_family(family: str) -> None:
    assert family_of_pipeline(TRAINABLE[family].pipeline_class_name) == family


def test_another_pipeline_leads_to_none() -> None:
    assert family_of_pipeline("AuraFlowPipeline") is None


def test_sharded_bf16_weights_of_a_family_that_keeps_fp32_are_planned_and_not_trained() -> None:
    """Plans say so: the memory is what FSDP2 would take, and no step can be made yet."""
    asked = {
        "model": "wan2.1-t2v-14b",
        "method": {"kind": "full"},
        "data": {"kind": "shapes"},
        "train": {"steps": 1, "weight_dtype": "bf16"},
        "parallel": {"devices": 8, "sharding": "full"},
    }
    experiment = Experiment.model_validate(asked)
    for only_planned, severity in ((False, "refused"), (True, "warning")):
        found = objections(experiment, "wan", distilled=None, only_planned=only_planned)
        (about,) = [one for one in found if "keep some weights of each block in fp32" in one.text]
        assert about.severity == severity
    assert not [one for one in objections(experiment, "flux", distilled=None) if "in fp32, and FSDP2" in one.text]
