"""Facts of families agree with the rows of their models."""

from pathlib import Path

import pytest

from foretune import catalog
from foretune.core.errors import UnknownName

DENOISERS = list(catalog.denoisers().values())
MODELS = Path(catalog.__file__).parents[1] / "models"


def test_every_family_of_the_catalogue_has_facts_and_a_module() -> None:
    families = {row.family for row in DENOISERS}
    assert families == set(catalog.FAMILY_FACTS)
    assert [name for name in catalog.FAMILY_FACTS if not (MODELS / f"{name}.py").is_file()] == []


def test_every_tiny_pipeline_has_a_module() -> None:
    with_tiny = {name for name, facts in catalog.FAMILY_FACTS.items() if facts.tiny_variants}
    assert [name for name in with_tiny if not (MODELS / "tiny" / f"{name}.py").is_file()] == []
    assert set(catalog.TRAINABLE) <= with_tiny


def test_pipelines_are_told_apart() -> None:
    assert len({facts.pipeline_class_name for facts in catalog.FAMILY_FACTS.values()}) == len(catalog.FAMILY_FACTS)


@pytest.mark.parametrize("row", DENOISERS, ids=lambda row: row.name)
def test_facts_of_a_family_hold_for_its_models(row: catalog.ModelComponent) -> None:
    facts = row.family_facts
    assert facts.name == row.family
    assert facts.is_unet == row.class_name.startswith("UNet")
    assert facts.is_mostly_convolutions == (row.num_conv_weight_params > row.num_linear_weight_params)
    if row.system is not None:
        assert facts.has_latents == (row.system.vae is not None)
        assert facts.has_text == bool(row.system.text_encoders or row.system.not_in_catalogue)


def test_what_has_no_family() -> None:
    with pytest.raises(AssertionError, match="vae-flux is no denoiser"):
        _ = catalog.component("vae-flux").family_facts
    with pytest.raises(UnknownName, match="flux"):
        catalog.family_facts("fluxx")


def test_models_that_can_only_be_planned_are_those_of_a_trainable_family() -> None:
    for facts in catalog.FAMILY_FACTS.values():
        for name in facts.untrainable_models:
            row = catalog.denoiser(name)
            assert row.family == facts.name
            assert facts.is_trainable
            assert not row.is_trainable
    assert catalog.denoiser("wan2.1-t2v-14b").is_trainable
    assert not catalog.denoiser("cogvideox-2b").is_trainable
