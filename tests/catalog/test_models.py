"""Model components: known figures, links that resolve, and a check that sees every planted mistake."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.catalog import CatalogError, component, components, denoiser, denoisers
from foretune.catalog.models import read_components
from foretune.catalog.rows import DATA_DIR
from foretune.core.errors import UnknownName

Rows = list[dict[str, Any]]


def _mutated(tmp_path: Path, mutate: Callable[[Rows], None]) -> Path:
    """A copy of the data file with something changed in it."""
    document = json.loads((DATA_DIR / "models.json").read_text())
    mutate(document["components"])
    path = tmp_path / "models.json"
    path.write_text(json.dumps(document))
    return path


def _change(name: str, /, **fields: Any) -> Callable[[Rows], None]:
    def mutate(rows: Rows) -> None:
        row = next(row for row in rows if row["name"] == name)
        for field, value in fields.items():
            part, _, inner = field.partition("__")
            if inner:
                row[part][inner] = value
            else:
                row[part] = value

    return mutate


def _drop(field: str) -> Callable[[Rows], None]:
    return lambda rows: rows[0].__delitem__(field)


def test_every_row_of_the_file_is_there_denoisers_first() -> None:
    rows = json.loads((DATA_DIR / "models.json").read_text())["components"]
    assert list(components()) == [row["name"] for row in rows]
    assert list(denoisers()) == [row["name"] for row in rows if row["role"] == "denoiser"]
    assert list(denoisers()) == list(components())[: len(denoisers())]


def test_unknown_names_are_answered_with_the_nearest() -> None:
    assert denoiser("flux1-dev").name == "flux.1-dev", "another way to write a name"
    with pytest.raises(UnknownName, match=r"no model named 'flux\.1-dve'.*'flux\.1-dev'"):
        denoiser("flux.1-dve")
    with pytest.raises(UnknownName, match="no component named"):
        component("vae-flx")
    with pytest.raises(UnknownName):
        denoiser("vae-flux")


@pytest.mark.parametrize(
    ("name", "family", "num_params", "num_blocks", "hidden_size"),
    [
        ("flux.1-dev", "flux", 11_901_408_320, 57, 3072),
        ("flux.1-schnell", "flux", 11_891_178_560, 57, 3072),
        ("sd3-medium", "sd3", 2_028_328_000, 24, 1536),
        ("sd3.5-medium", "sd3", 2_243_171_520, 24, 1536),
        ("sdxl-unet", "sdxl", 2_567_463_684, None, None),
        ("ddpm-cifar10", "ddpm", 35_746_307, None, None),
        ("hunyuanvideo", "hunyuan_video", 12_821_012_544, 60, 3072),
        ("qwen-image", "qwen_image", 20_430_401_088, 60, 3072),
        ("z-image", "z_image", 6_154_908_736, 30, 3840),
    ],
)
def test_published_figures(
    name: str, family: str, num_params: int, num_blocks: int | None, hidden_size: int | None
) -> None:
    row = denoiser(name)
    assert (row.family, row.num_params) == (family, num_params)
    assert (row.num_blocks, row.hidden_size) == (num_blocks, hidden_size)


def test_systems() -> None:
    flux, ddpm = denoiser("flux.1-dev").system, denoiser("ddpm-cifar10").system
    assert flux is not None
    assert (flux.vae, flux.text_encoders) == ("vae-flux", ("clip-l-text", "t5-v1_1-xxl-encoder"))
    assert ddpm is not None
    assert (ddpm.vae, ddpm.text_encoders) == (None, ())
    assert denoiser("auraflow").system is None


def test_distilled_only_where_a_source_says_so() -> None:
    distilled = {name for name, row in denoisers().items() if row.distilled}
    assert distilled == {"flux.1-schnell", "z-image"}
    assert denoiser("flux.1-dev").distillation == "guidance"
    assert denoiser("flux.1-dev").distilled is False
    assert denoiser("mochi-1").distilled is None


def test_every_row_names_its_sources() -> None:
    for row in components().values():
        assert row.source.class_code.startswith(f"huggingface/{row.library} "), row.name


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        (_change("flux.1-dev", source__config=""), r"row 1 \(flux\.1-dev\), source\.config"),
        (_change("flux.1-dev", source=None), r"\(flux\.1-dev\), source"),
        (_change("flux.1-dev", name="sd3-medium"), "sd3-medium: appears twice"),
        (_change("flux.1-dev", name="FLUX dev"), r"\(FLUX dev\), name"),
        (_change("flux.1-dev", num_params=-1), "num_params.*greater than 0"),
        (_change("flux.1-dev", num_linear_weight_params=20_000_000_000), "more than all parameters"),
        (_change("flux.1-dev", role="transformer"), "role"),
        (_change("flux.1-dev", family=None), "a denoiser has a family"),
        (_change("flux.1-dev", family="sd3"), r"sd3-medium, family: sd3 is FluxTransformer2DModel"),
        (_change("flux.1-dev", lora_params_per_rank=None), "a denoiser has LoRA sizes"),
        (
            _change("flux.1-dev", system__vae="vae-flx"),
            r"flux\.1-dev, system\.vae: no component is named 'vae-flx'",
        ),
        (_change("flux.1-dev", system__vae="clip-l-text"), "'clip-l-text' is a text_encoder, not a vae"),
        (_change("flux.1-dev", system__text_encoders=["clip-x"]), "system.text_encoders: no component"),
        (_change("wan2.1-i2v-14b", system__image_encoder="clip-x"), "system.image_encoder: no component"),
        (_change("flux.1-dev", distillation_source=None), "distillation and its source"),
        (_change("flux.1-dev", hub_revision="main"), "hub_revision"),
        (_change("flux.1-dev", hub_repo="FLUX.1-dev"), "hub_repo"),
        (_change("flux.1-dev", config={}), "config is empty"),
        (_change("flux.1-dev", colour="green"), "colour: Extra inputs"),
        (_change("vae-flux", spatial_compression=None), "a VAE has its compression"),
        (_drop("note"), "note: Field required"),
    ],
)
def test_a_planted_mistake_is_seen(tmp_path: Path, mutate: Callable[[Rows], None], complaint: str) -> None:
    with pytest.raises(CatalogError, match=complaint) as caught:
        read_components(_mutated(tmp_path, mutate))
    assert caught.value.file == "models.json"


def test_all_mistakes_of_a_file_are_raised_at_once_and_only_once(tmp_path: Path) -> None:
    def mutate(rows: Rows) -> None:
        _change("sd3-medium", system__vae="nowhere")(rows)
        _change("t5-v1_1-xxl-encoder", num_params=0)(rows)  # six systems refer to it

    with pytest.raises(CatalogError) as caught:
        read_components(_mutated(tmp_path, mutate))
    assert len(caught.value.problems) == 2


def test_a_doubled_key_in_the_file_is_seen(tmp_path: Path) -> None:
    text = (DATA_DIR / "models.json").read_text()
    path = tmp_path / "models.json"
    path.write_text(text.replace('"hidden_size": 3072,', '"hidden_size": 3072, "hidden_size": 1,', 1))
    with pytest.raises(CatalogError, match="'hidden_size' appears twice"):
        read_components(path)


def test_a_file_without_rows_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"rows": []}')
    with pytest.raises(CatalogError, match="'components'"):
        read_components(path)
