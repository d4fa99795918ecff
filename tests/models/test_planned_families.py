"""Families that are planned from their architecture before they can be trained: arithmetic on small real models."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid
from torch import nn

from foretune import catalog
from foretune.choices.training import ObjectiveChoice
from foretune.core.errors import UnknownName
from foretune.models import FAMILIES, Family
from foretune.models.cogvideox import _middle
from foretune.models.locating import family_from_catalogue
from foretune.models.objectives import Epsilon, FlowMatching, Velocity
from foretune.models.packing import grid_positions, pack_patches, unpack_patches
from foretune.models.trainable import TrainableFamily

EVERY = sorted(catalog.denoisers())


def reduced(name: str, **changes: Any) -> Family:
    """A catalogued model with other numbers in its configuration."""
    return family_from_catalogue(name)._with_config(changes)


def made_conditioning(family: Family, batch_size: int, num_text_tokens: int) -> dict[str, torch.Tensor]:
    specs = family.conditioning_specs(batch_size, num_text_tokens)
    return {name: torch.randn(spec.shape) for name, spec in specs.items()}


@pytest.mark.parametrize("name", catalog.FAMILY_FACTS)
def test_every_family_has_its_module(name: str) -> None:
    family = FAMILIES[name]
    assert family.facts is catalog.family_facts(name)
    assert family.__module__ == f"foretune.models.{name}"
    assert not inspect.isabstract(family)
    assert issubclass(family, TrainableFamily) == family.facts.is_trainable
    for pipeline_class in family.facts.pipeline_class_names:
        assert getattr(diffusers, pipeline_class).__name__ == pipeline_class


@pytest.mark.parametrize("name", catalog.FAMILY_FACTS)
def test_a_pipeline_guides_as_the_facts_say(name: str) -> None:
    code = inspect.getsource(getattr(diffusers, catalog.family_facts(name).pipeline_class_name).__call__)
    doubles = re.search(r"torch\.cat\(\[latents\] \* 2\)|latents_typed\.repeat\(2, 1, 1, 1\)", code) is not None
    assert doubles == catalog.family_facts(name).guides_in_one_batch


def test_there_are_as_many_classes_as_families() -> None:
    assert list(FAMILIES) == list(catalog.FAMILY_FACTS)
    assert len(set(FAMILIES.values())) == len(FAMILIES)
    assert "flux" in FAMILIES
    assert "gan" not in FAMILIES
    with pytest.raises(UnknownName, match="model family"):
        FAMILIES["gan"]


@pytest.mark.parametrize("name", EVERY)
def test_a_family_says_what_the_catalogue_says(name: str) -> None:
    row, family = catalog.denoiser(name), family_from_catalogue(name)
    assert family.name == row.family
    assert family.denoiser_class_name == row.class_name
    vae = catalog.component(row.system.vae) if row.system and row.system.vae else None
    if vae is not None:
        assert vae.spatial_compression is not None
        assert vae.latent_channels is not None
        num_frames = 49 if vae.temporal_compression is not None and family.default_num_frames() > 1 else 1
        channels, *frames, height, width = family.latent_shape(1024, 768, num_frames)
        folded = 1024 // vae.spatial_compression // height
        assert (height * folded, width * folded) == (1024 // vae.spatial_compression, 768 // vae.spatial_compression)
        assert channels == vae.latent_channels * folded**2
        if frames:
            assert vae.temporal_compression is not None
            per_token = int(row.config.get("patch_size_t") or 1)
            assert frames[0] == -(-((num_frames - 1) // vae.temporal_compression + 1) // per_token) * per_token
    height_px, width_px = family.default_size_px()
    assert height_px % family.size_multiple_px() == 0
    assert width_px % family.size_multiple_px() == 0
    assert min(height_px, width_px) == family.default_resolution_px()


@pytest.mark.parametrize("name", EVERY)
def test_latents_are_drawn_and_scaled(name: str) -> None:
    family = family_from_catalogue(name)
    if not family.has_latents:
        return
    num_frames = 9 if family.default_num_frames() > 1 else 1
    shape = (2, *family.latent_shape(128, 128, num_frames))
    moments = torch.randn(shape[0], shape[1] * 2, *shape[2:])
    noise = torch.randn(shape)
    drawn = moments[:, : shape[1]] + torch.exp(0.5 * moments[:, shape[1] :]) * noise
    vae = family.architecture.vae or {}
    mean, std = torch.zeros(shape[1]), torch.ones(shape[1])
    if vae.get("latents_mean") is not None:
        mean, std = torch.tensor(vae["latents_mean"]), torch.tensor(vae["latents_std"])
    per_channel = (1, -1, *[1] * (len(shape) - 2))
    scale = {"hunyuan_video15": 1.03682}.get(family.name, vae.get("scaling_factor") or 1.0)
    expected = (drawn - (vae.get("shift_factor") or 0.0) - mean.view(per_channel)) * scale / std.view(per_channel)
    torch.testing.assert_close(family.latents_from_moments(moments, noise), expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("wan2.1-t2v-1.3b", {"num_layers": 1, "num_attention_heads": 1, "ffn_dim": 16, "text_dim": 8, "freq_dim": 8}),
        (
            "krea-2",
            {
                "num_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "intermediate_size": 16,
                "timestep_embed_dim": 8,
                "text_hidden_dim": 16,
                "text_num_attention_heads": 2,
                "text_num_key_value_heads": 2,
                "text_intermediate_size": 16,
            },
        ),
        ("sd3-medium", {"num_layers": 2, "num_attention_heads": 1, "caption_projection_dim": 64}),
    ],
)
def test_types_on_meta_are_those_of_a_loaded_model(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Some weights stay in fp32 whatever is asked for, and stored tables do not."""
    family = reduced(name, **changes)
    config = dict(family.architecture.denoiser)
    family.denoiser_class()(**config).save_pretrained(tmp_path / family.denoiser_part)
    loaded = family.denoiser_class().from_pretrained(tmp_path / family.denoiser_part, dtype=torch.bfloat16)
    on_meta = family.denoiser_on_meta(torch.bfloat16)

    def types(denoiser: nn.Module) -> dict[str, torch.dtype]:
        return {name: t.dtype for name, t in (*denoiser.named_parameters(), *denoiser.named_buffers())}

    assert types(on_meta) == types(loaded)
    assert (torch.float32 in {p.dtype for p in loaded.parameters()}) == (name != "sd3-medium")


def test_patches_come_back() -> None:
    latents = torch.randn(2, 3, 4, 6)
    tokens = pack_patches(latents)
    assert tokens.shape == (2, 6, 12)
    # The second token is the patch of rows 0 and 1, columns 2 and 3.
    torch.testing.assert_close(tokens[:, 1].view(2, 3, 2, 2), latents[:, :, :2, 2:4])
    assert torch.equal(unpack_patches(tokens, latents.shape), latents)
    assert grid_positions(2, 3, latents)[4].tolist() == [0, 1, 1]


@pytest.mark.parametrize("grid", [(30, 45), (32, 48), (48, 32), (16, 60), (30, 30)])
def test_cogvideox_places_are_those_of_its_pipeline(grid: tuple[int, int]) -> None:
    assert _middle(grid, (30, 45)) == get_resize_crop_region_for_grid(grid, 45, 30)


@pytest.mark.parametrize("size", [(8, 8), (8, 12)])
def test_hidream_answers_alike_in_training_and_evaluation(size: tuple[int, int]) -> None:
    """While training it hands out patches; put together they are the image it hands out otherwise."""
    torch.manual_seed(0)
    family = reduced(
        "hidream-i1",
        num_layers=1,
        num_single_layers=1,
        num_attention_heads=2,
        llama_layers=[0, 1],
        caption_channels=[64, 64],
        text_emb_dim=32,
        max_resolution=[16, 16],
    )
    config = {key: value for key, value in family.architecture.denoiser.items() if not key.startswith("_")}
    denoiser = family.denoiser_class()(**config)
    noisy, conditioning = torch.randn(2, 16, *size), made_conditioning(family, 2, 4)
    with torch.no_grad():
        answers = [
            family.predict(denoiser.train(training), noisy, torch.tensor([5.0, 500.0]), conditioning, guidance_scale=1)
            for training in (True, False)
        ]
    assert answers[0].shape == noisy.shape
    assert answers[0].std() > 0
    torch.testing.assert_close(answers[0], answers[1])


@pytest.mark.parametrize(("is_dynamic", "shift"), [(True, 1.0), (False, 3.0)])
def test_a_shift_by_image_size_is_not_one_of_training(is_dynamic: bool, shift: float) -> None:
    """Such a scheduler has a static shift in its configuration, too, which its pipeline does not use."""
    scheduler = {"shift": 3.0, "use_dynamic_shifting": is_dynamic}
    for name in ("qwen-image", "ovis-image-7b", "flux.1-dev"):
        family = family_from_catalogue(name)
        objective = type(family)(replace(family.architecture, scheduler=scheduler)).objective(ObjectiveChoice())
        assert isinstance(objective, FlowMatching)
        assert objective.shift == shift


def test_diffusion_families_are_asked_what_they_were_trained_on() -> None:
    choice = ObjectiveChoice()
    sdxl, cogvideox = (family_from_catalogue(name).objective(choice) for name in ("sdxl-unet", "cogvideox-5b"))
    assert isinstance(sdxl, Epsilon)
    assert sdxl.beta_schedule == "scaled_linear"
    assert isinstance(cogvideox, Velocity)
    level = torch.tensor([0, 500, 999])
    clean, noise = torch.randn(3, 2), torch.randn(3, 2)
    scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    torch.testing.assert_close(sdxl.noisy(clean, noise, level), scheduler.add_noise(clean, noise, level))
    torch.testing.assert_close(cogvideox.target(clean, noise, level), scheduler.get_velocity(clean, noise, level))


@pytest.mark.parametrize("name", catalog.FAMILY_FACTS)
def test_the_facts_know_videos_and_what_stays_in_fp32(name: str) -> None:
    family, facts = FAMILIES[name], catalog.family_facts(name)
    assert bool(getattr(family.denoiser_class(), "_keep_in_fp32_modules", None)) == facts.keeps_fp32
    for row in catalog.denoisers().values():
        if row.family == name:
            assert (family_from_catalogue(row.name).default_num_frames() > 1) == facts.is_video
