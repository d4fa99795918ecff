"""What a model's name refers to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretune import catalog
from foretune.catalog import TRAINABLE
from foretune.choices.model import resolve_model, shipped_folder
from foretune.core.errors import AmbiguousName, Refused, UnknownName, UserError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_checkpoint(folder: Path, pipeline: str, **transformer: object) -> Path:
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    (folder / "transformer" / "config.json").write_text(json.dumps(transformer))
    return folder


@pytest.mark.parametrize("name", catalog.denoisers())
def test_every_name_of_the_catalogue(name: str) -> None:
    row, found = catalog.denoiser(name), resolve_model(name)
    assert (found.kind, found.family, found.distilled) == ("catalogue", row.family, row.distilled)
    assert (found.repo, found.revision, found.folder) == (row.hub_repo, row.hub_revision, None)


def test_the_trainable_names() -> None:
    assert resolve_model("flux.1-schnell").distilled is True
    assert resolve_model("flux.1-dev").distilled is False
    assert resolve_model("ddpm-cifar10").family == "ddpm"


@pytest.mark.parametrize("family", TRAINABLE)
def test_a_folder(here: Path, family: str) -> None:
    make_checkpoint(here / "mine", TRAINABLE[family].pipeline_class_name, guidance_embeds=True)
    for asked in ("mine", "./mine", "mine/", str(here / "mine")):
        found = resolve_model(asked)
        assert (found.kind, found.family, found.asked) == ("folder", family, asked)
        assert found.folder is not None
        assert found.folder.resolve() == here / "mine"


def test_a_folder_beside_the_experiment(here: Path) -> None:
    make_checkpoint(here / "there" / "mine", "FluxPipeline")
    assert resolve_model("mine", relative_to=here / "there").kind == "folder"


def test_a_folder_of_the_home_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    make_checkpoint(here / "home" / "mine", "FluxPipeline")
    assert resolve_model("~/mine").kind == "folder"


def test_a_flux_folder_tells_whether_it_is_distilled(here: Path) -> None:
    make_checkpoint(here / "dev", "FluxPipeline", guidance_embeds=True)
    make_checkpoint(here / "schnell", "FluxPipeline", guidance_embeds=False)
    make_checkpoint(here / "sd3", "StableDiffusion3Pipeline")
    assert [resolve_model(name).distilled for name in ("dev", "schnell", "sd3")] == [False, True, None]


def test_a_folder_goes_before_a_catalogue_name(here: Path) -> None:
    make_checkpoint(here / "flux.1-dev", "DDPMPipeline")
    assert resolve_model("flux.1-dev").family == "ddpm"


def test_a_folder_without_a_model_does_not_hide_the_catalogue(here: Path) -> None:
    (here / "flux.1-dev").mkdir()
    assert resolve_model("flux.1-dev").kind == "catalogue"
    with pytest.raises(UserError, match=r"without model_index\.json"):
        resolve_model("./flux.1-dev")


def test_a_hub_id() -> None:
    known = resolve_model("black-forest-labs/FLUX.1-schnell@v1.0")
    assert (known.kind, known.family, known.distilled) == ("hub", "flux", True)
    assert (known.repo, known.revision) == ("black-forest-labs/FLUX.1-schnell", "v1.0")
    other = resolve_model("someone/something")
    assert (other.kind, other.family, other.distilled, other.revision) == ("hub", None, None, None)


@pytest.mark.parametrize("asked", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "nowhere/", "~no-one-here/x"])
def test_a_folder_that_is_not_there(asked: str) -> None:
    with pytest.raises(UserError, match=f"The model folder {asked} does not exist"):
        resolve_model(asked)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("flux1-dev", "flux.1-dev"),
        ("FLUX.1-DEV", "flux.1-dev"),
        ("sdxl", "sdxl-unet"),
        ("qwen", "qwen-image"),
        ("sd3.5 large", "sd3.5-large"),
        ("stable diffusion xl", "sdxl-unet"),
        ("schnell", "flux.1-schnell"),
        ("sd1.5", "sd1.5-unet"),
        ("flux.2", "flux.2-dev"),
    ],
)
def test_a_model_by_what_people_call_it(asked: str, name: str) -> None:
    found = resolve_model(asked)
    assert (found.kind, found.asked) == ("catalogue", name)
    assert found == replace(resolve_model(name), note=found.note)


@pytest.mark.parametrize(
    ("asked", "candidates"),
    [
        ("flux", ("flux.1-dev", "flux.1-schnell", "flux.2-dev")),
        ("sd3.5", ("sd3.5-medium", "sd3.5-large")),
        ("hunyuan", ("hunyuanvideo", "hunyuanvideo-1.5")),
        ("wan2.1", ("wan2.1-t2v-14b", "wan2.1-i2v-14b", "wan2.1-t2v-1.3b")),
        ("cogvideox", ("cogvideox-2b", "cogvideox-5b", "cogvideox1.5-5b")),
    ],
)
def test_a_name_that_fits_several_models(asked: str, candidates: tuple[str, ...]) -> None:
    with pytest.raises(AmbiguousName) as caught:
        resolve_model(asked)
    assert caught.value.candidates == candidates


def test_wan_is_a_family_of_six() -> None:
    with pytest.raises(AmbiguousName) as caught:
        resolve_model("wan")
    assert caught.value.candidates == tuple(name for name in catalog.denoisers() if name.startswith("wan"))


def test_a_hub_id_in_other_capitals_is_the_same_model() -> None:
    found = resolve_model("Black-Forest-Labs/flux.1-dev")
    assert (found.kind, found.family, found.repo) == ("hub", "flux", "black-forest-labs/FLUX.1-dev")


@pytest.mark.parametrize("asked", ["flux.1-def", "flux.1-dve"])
def test_a_name_that_is_nearly_right(asked: str) -> None:
    with pytest.raises(UnknownName, match=r"There is no model in the catalogue named .* Did you mean 'flux\.1-dev'\?"):
        resolve_model(asked)


@pytest.mark.parametrize("asked", ["no", "a/b/c", "x" * 5000])
def test_a_name_that_is_nothing(asked: str) -> None:
    with pytest.raises(UnknownName, match="Known: "):
        resolve_model(asked)


@pytest.mark.parametrize("asked", ["./finetune.safetensors", "finetune.safetensors", "models/finetune.safetensors"])
def test_a_single_file_checkpoint(asked: str) -> None:
    with pytest.raises(Refused, match=rf"a folder, not a single file.*foretune import-checkpoint {asked} --base MODEL"):
        resolve_model(asked)


def test_a_folder_that_holds_something_else(here: Path) -> None:
    make_checkpoint(here / "video", "CogVideoXPipeline")
    with pytest.raises(
        Refused, match=r"is a CogVideoXPipeline, which cannot be trained yet\. Trainable: ChromaPipeline, "
    ):
        resolve_model("./video")


@pytest.mark.parametrize("content", ["", "not json", "[1]"])
def test_a_folder_that_is_damaged(here: Path, content: str) -> None:
    make_checkpoint(here / "mine", "FluxPipeline")
    (here / "mine" / "model_index.json").write_text(content)
    with pytest.raises(UserError, match=r"model_index\.json (cannot be read as JSON|should hold a JSON object)"):
        resolve_model("./mine")


def test_a_shipped_model_is_found_by_its_name(here: Path) -> None:
    found = resolve_model("foretune-shapes")
    assert (found.kind, found.family, found.distilled) == ("folder", "flux", False)
    assert found.folder == shipped_folder("foretune-shapes")
    assert (found.folder / "model_index.json").is_file()
    # An empty folder of that name does not hide it; a model of one's own does.
    (here / "foretune-shapes").mkdir()
    assert resolve_model("foretune-shapes").folder == shipped_folder("foretune-shapes")
    make_checkpoint(here / "mine" / "foretune-shapes", "FluxPipeline", guidance_embeds=True)
    own = resolve_model("foretune-shapes", relative_to=here / "mine").folder
    assert own == here / "mine" / "foretune-shapes"


def test_a_slip_of_the_finger_finds_a_shipped_model() -> None:
    with pytest.raises(UnknownName, match="foretune-shapes"):
        resolve_model("foretune-shape")
