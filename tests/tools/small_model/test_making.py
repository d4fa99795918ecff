"""How the shipped model is made: on as few steps as show that each part does its work."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from diffusers import AutoencoderKL

import foretune.models
from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.core.values import RunRecord
from foretune.data.sources.shapes import captions_shown, kinds_shown
from foretune.models.locating import open_family
from foretune.training.train import train
from tools.small_model.__main__ import main
from tools.small_model.autoencoder import (
    SIZE_PX,
    build_autoencoder,
    train_autoencoder,
    with_principal_channels,
)
from tools.small_model.files import ship, write_start
from tools.small_model.pipeline import NUM_TEXT_TOKENS, build_pipeline

SHIPPED = Path(foretune.models.__path__[0]) / "shipped" / "foretune-shapes"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start around an autoencoder that has learnt nothing."""
    folder = tmp_path_factory.mktemp("small") / "start"
    write_start(build_pipeline(build_autoencoder(8).eval(), seed=0), folder)
    return folder


def test_an_autoencoder_learns_and_its_latents_have_deviation_one() -> None:
    errors: list[float] = []
    fit = train_autoencoder(12, 4, num_images=64, seed=0, on_step=lambda _, error: errors.append(error))
    assert len(errors) == 16
    assert np.mean(errors[8:12]) < 0.8 * errors[0]
    assert set(fit.psnr_db_by_style) == {"plain", "hollow", "halved", "framed"}
    images = torch.rand(4, 3, SIZE_PX, SIZE_PX) * 2 - 1
    assert fit.vae.encode(images).latent_dist.mean.shape == (4, 8, 8, 8)
    assert fit.vae.config["scaling_factor"] > 0


def test_all_directions_kept_is_the_same_autoencoder() -> None:
    """Turned only, nothing left out: images come back as before, but for the border."""
    torch.manual_seed(0)
    vae = build_autoencoder(4).eval()
    images = torch.rand(64, 3, SIZE_PX, SIZE_PX) * 2 - 1
    turned = with_principal_channels(vae, images, 4).eval()

    def drawn(one: AutoencoderKL) -> torch.Tensor:
        with torch.no_grad():
            latents: torch.Tensor = one.encode(images[:2]).latent_dist.mean
            image: torch.Tensor = one.decoder.conv_in(latents)
        return image[:, :, 1:-1, 1:-1]

    assert torch.allclose(drawn(turned), drawn(vae), atol=1e-4)
    fewer = with_principal_channels(vae, images, 2).eval()
    assert not torch.allclose(drawn(fewer), drawn(vae), atol=1e-2)


def readable_share(features: np.ndarray, colours: np.ndarray) -> float:
    """Share of unseen captions whose colour a linear reader of seen ones finds."""
    unseen = frozenset(kinds_shown("unseen"))
    is_seen = np.array([kind not in unseen for kind in kinds_shown("all")])
    centred = (features - features.mean(0)) / (features.std(0) + 1e-6)
    inputs, wanted = np.c_[centred, np.ones(len(centred))], np.eye(8)[colours]
    shrink = 1e-3 * is_seen.sum() * np.eye(inputs.shape[1])
    weights = np.linalg.solve(inputs[is_seen].T @ inputs[is_seen] + shrink, inputs[is_seen].T @ wanted[is_seen])
    return float(((inputs @ weights).argmax(1) == colours)[~is_seen].mean())


def test_random_text_encoders_tell_which_colour_is_whose(start: Path) -> None:
    """FLUX gives words no places, so what words say together must tell them; as written with fp16 weights."""
    family = open_family(start)
    encoders = family.load_text_encoders(start, torch.float32)
    captions, kinds = captions_shown("all"), kinds_shown("all")
    with torch.no_grad():
        encoded = family.encode_text(encoders, captions, NUM_TEXT_TOKENS)
    names = sorted({kind[2] for kind in kinds})
    for place in (2, 3):
        colours = np.array([names.index(kind[place]) for kind in kinds])
        # As a bag of words: summed over places, the way attention without places sees them.
        assert readable_share(encoded["prompt_embeds"].mean(1).numpy(), colours) > 0.95
        assert readable_share(encoded["pooled_embeds"].numpy(), colours) > 0.95
        # The control: another caption's words tell nothing.
        shuffled = np.random.default_rng(0).permutation(encoded["pooled_embeds"].numpy())
        assert readable_share(shuffled, colours) < 0.4


def test_sizes_follow_from_the_files(start: Path) -> None:
    family = open_family(start)
    assert family.default_resolution_px() == 32
    assert family.own_text_tokens() == NUM_TEXT_TOKENS
    assert family.latent_shape(32, 32) == (8, 8, 8)
    assert family.size_multiple_px() == 8


def test_what_ships_comes_from_a_run_and_tells_no_place(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = understand(
        {
            "name": "small",
            "model": str(start),
            "method": {"kind": "full"},
            "data": {"kind": "shapes", "num_samples": 8, "captions": "seen"},
            "train": {"steps": 2, "batch_size": 2, "precision": "fp32", "ema": {}},
            "validate": {"num_held_out": 0},
        },
        source="test",
    )
    run = train(asked, tmp_path / "runs", Observer()).run
    ship(run.path, tmp_path / "shipped")
    family = open_family(tmp_path / "shipped")
    changed = family.load_denoiser(tmp_path / "shipped", torch.float32).state_dict()
    before = family.load_denoiser(start, torch.float32).state_dict()
    assert any(not torch.equal(changed[name], before[name]) for name in before)
    text = (tmp_path / "shipped" / "record.json").read_text()
    assert RunRecord.from_json(text).outcome.steps_done == 2
    recipe = (tmp_path / "shipped" / "recipe.yaml").read_text()
    for place in (str(tmp_path), str(Path.home()), json.dumps(str(Path.cwd()))):
        assert place not in text
        assert place not in recipe
    run.remove_record()
    with pytest.raises(UserError, match="has not ended"):
        ship(run.path, tmp_path / "again")


def test_the_way_from_nothing_to_what_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the page, as it is typed, at the smallest size: the recipes are those that ship."""
    monkeypatch.chdir(tmp_path)
    assert main(["start", "./start", "--steps", "3", "--decoder-steps", "2", "--images", "8"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert set(reported["psnr_db_by_style"]) == {"plain", "hollow", "halved", "framed"}
    small = {"data.num_samples": 12, "data.held_out": 0.25, "train.steps": 2, "train.batch_size": 2}
    for recipe, shipped in (("earlier-recipe.yaml", "./first"), ("recipe.yaml", "./foretune-shapes")):
        content = yaml.safe_load((SHIPPED / recipe).read_text(encoding="utf-8"))
        for name, value in small.items():
            section, key = name.split(".")
            content[section][key] = value
        content["optimizer"]["warmup_steps"] = 1
        content["validate"] = {"num_held_out": 1}
        run = train(understand(content, source=recipe), tmp_path / "runs", Observer()).run
        assert main(["ship", str(run.path), shipped]) == 0
    recipes = [
        yaml.safe_load(Path("foretune-shapes", name).read_text()) for name in ("earlier-recipe.yaml", "recipe.yaml")
    ]
    assert [recipe["model"] for recipe in recipes] == ["./start", "./first"]
    capsys.readouterr()
    assert main(["check", "./foretune-shapes", "--num", "2", "--steps", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["num_images"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["ship", "./nothing", "./x"], "nothing"), (["check", "./nothing"], "nothing holds no pipeline")],
)
def test_what_is_not_there_is_told_in_a_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_nothing_cannot_be_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["start", "./start", "--images", "0"])
    assert "1 is the least" in capsys.readouterr().err
