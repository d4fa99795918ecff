"""What every family answers, on the catalogue's models without weights and on tiny ones with them."""

import dataclasses
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
from diffusers import DDPMScheduler, EDMEulerScheduler, FlowMatchEulerDiscreteScheduler
from torch import nn

from foretune import catalog
from foretune.catalog import TRAINABLE
from foretune.choices.tiny import TINY_VARIANTS
from foretune.choices.training import ObjectiveChoice
from foretune.core.errors import Refused
from foretune.models import FAMILIES, Family
from foretune.models.locating import family_from_catalogue, open_family
from foretune.models.objectives import FlowMatching
from foretune.models.tiny.tokenizers import build_qwen_tokenizer
from foretune.models.trainable import TrainableFamily
from tests.models.made_inputs import latent_shape, made_conditioning, not_in, sampling_inputs, small_size

TinyPipeline = Callable[..., Path]

TINY = [(family, variant) for family, variants in TINY_VARIANTS.items() for variant in variants]
WITH_TEXT = [case for case in TINY if TRAINABLE[case[0]].has_text]
WITH_LATENTS = [name for name, facts in TRAINABLE.items() if facts.has_latents]
PUBLISHED = {name: row for name, row in catalog.denoisers().items() if row.family in TRAINABLE}
ONE_OF_EACH = {row.family: name for name, row in PUBLISHED.items()}
NUM_BLOCKS = {"ddpm-cifar10": 9, "sd1.5-unet": 38, "sd2-unet": 38, "sdxl-unet": 87, "z-image": 30 + 2 + 2}
"""The catalogue does not count those of U-Nets, nor refiners, which Z-Image checkpoints like its other blocks.

DDPM: 4 down, 1 in the middle, 4 up. The other U-Nets, residual layers and transformer blocks: 14, 3 and 21 of Stable
Diffusion 1 and 2; 30, 12 and 45 of XL.
"""
CAPTIONS = ["a small red circle on blue", "", "a large green star on white with a very long tail of words " * 3]
NUM_TEXT_TOKENS = 24


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_trainable_family_has_what_training_needs(name: str, tiny_pipeline: TinyPipeline) -> None:
    facts, family = TRAINABLE[name], FAMILIES[name]
    assert facts.tiny_variants, "nothing else shows on a CPU that it can be trained"
    for variant in facts.tiny_variants:
        bound = open_family(tiny_pipeline(name, variant))
        assert type(bound) is family
        bound.objective(ObjectiveChoice())  # refuses a scheduler that it cannot be trained with
    assert issubclass(family, TrainableFamily)
    assert bool(family.text_parts) == facts.has_text
    assert (family.encode_text is not TrainableFamily.encode_text) == facts.has_text


@pytest.mark.parametrize("name", PUBLISHED)
def test_denoiser_on_meta_is_the_catalogued_one(name: str) -> None:
    family = family_from_catalogue(name)
    denoiser = family.denoiser_on_meta(torch.bfloat16)
    parameters = list(denoiser.parameters())
    assert sum(p.numel() for p in parameters) == PUBLISHED[name].num_params
    assert {p.device.type for p in parameters} == {"meta"}
    assert not_in(torch.bfloat16, denoiser) == set()
    assert torch.get_default_dtype() == torch.float32
    blocks = family.blocks(denoiser)
    assert len(blocks) == NUM_BLOCKS.get(name, PUBLISHED[name].num_blocks)
    assert len({id(block) for block in blocks}) == len(blocks)
    assert set(map(id, blocks)) <= set(map(id, denoiser.modules()))


def test_default_dtype_comes_back_when_building_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    family = family_from_catalogue("ddpm-cifar10")

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(family, "denoiser_class", lambda: fail)
    with pytest.raises(RuntimeError, match="no"):
        family.denoiser_on_meta(torch.bfloat16)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("name", "size_px", "latent", "multiple_px", "default_px"),
    [
        ("flux.1-dev", (768, 1024), (16, 96, 128), 16, 1024),
        ("sd3-medium", (768, 1024), (16, 96, 128), 16, 1024),
        ("sd3.5-large", (512, 512), (16, 64, 64), 16, 1024),
        ("ovis-image-7b", (768, 1024), (16, 96, 128), 16, 1024),
        ("ddpm-cifar10", (32, 32), (3, 32, 32), 8, 32),
        ("sd1.5-unet", (512, 768), (4, 64, 96), 64, 512),
        ("sdxl-unet", (768, 1024), (4, 96, 128), 32, 1024),
    ],
)
def test_sizes(name: str, size_px: tuple[int, int], latent: tuple[int, ...], multiple_px: int, default_px: int) -> None:
    family = family_from_catalogue(name)
    assert family.latent_shape(*size_px) == latent
    assert family.size_multiple_px() == multiple_px
    assert family.default_resolution_px() == default_px


@pytest.mark.parametrize(
    "name", [name for family, name in ONE_OF_EACH.items() if not FAMILIES[str(family)].goes_by_samples]
)
def test_a_published_model_takes_what_its_family_says(name: str) -> None:
    """Shapes only: nothing is computed, but the denoiser's own code runs on what `predict` hands it.

    Denoisers that read the values of masks cannot run so; the tests of traces run them on fake tensors.
    """
    family = family_from_catalogue(name)
    denoiser = family.denoiser_on_meta(torch.float32)
    side_px = family.size_multiple_px() * 4
    noisy = torch.empty(2, *latent_shape(family, small_size(family, side_px, side_px)), device="meta")
    time = torch.zeros(2, device="meta")
    conditioning = made_conditioning(family, noisy, NUM_TEXT_TOKENS, "meta")
    with torch.no_grad():
        predicted = family.predict(denoiser, noisy, time, conditioning, guidance_scale=1.0)
    assert predicted.shape == noisy.shape


@pytest.mark.parametrize(("name", "variant"), TINY)
def test_prediction_has_the_shape_of_its_input(name: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name, variant)
    family = open_family(folder)
    denoiser = family.load_denoiser(folder, torch.float32)
    for height_px, width_px in ((32, 32), (64, 32)):
        noisy = torch.randn(3, *latent_shape(family, small_size(family, height_px, width_px)))
        conditioning = made_conditioning(family, noisy, NUM_TEXT_TOKENS)
        with torch.no_grad():
            predicted = family.predict(denoiser, noisy, torch.tensor([1, 500, 999]), conditioning, guidance_scale=3.5)
        assert predicted.shape == noisy.shape
        assert predicted.isfinite().all()
        assert predicted.std() > 0


@pytest.mark.parametrize(("name", "variant"), WITH_TEXT)
def test_captions_are_encoded_as_by_the_pipeline(name: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name, variant)
    family = open_family(folder)
    num_tokens = family.default_text_tokens if family.text_is_fixed else NUM_TEXT_TOKENS
    pipeline = family.load_pipeline(folder, torch.float32)
    encoders = family.load_text_encoders(folder, torch.float32)
    assert getattr(encoders, family.denoiser_part) is None
    assert encoders.vae is None
    calls: list[dict[str, Any]] = []
    denoiser: nn.Module = getattr(pipeline, family.denoiser_part)
    signature = inspect.signature(type(denoiser).forward)
    denoiser.register_forward_pre_hook(
        lambda module, given, named: calls.append(signature.bind(module, *given, **named).arguments), with_kwargs=True
    )
    size = {**sampling_inputs(family, small_size(family)), "output_type": "latent"}
    asked = family.sampling_arguments(num_tokens, family.facts.unguided_scale)
    pipeline(prompt=list(CAPTIONS), num_inference_steps=2, **size, **asked)  # a copy: one writes into the list
    with torch.no_grad():
        found = family.encode_text(encoders, CAPTIONS, num_tokens)
    # Whole images of the size that is sampled.
    found |= family.image_conditioning(torch.tensor([[32.0, 32.0, 0.0, 0.0, 32.0, 32.0]] * len(CAPTIONS)))
    specs = family.conditioning_specs(len(CAPTIONS), num_tokens)
    specs.pop("image_embeds", None)  # of a first frame, not of captions
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {k: s.shape for k, s in specs.items()}
    nested = calls[0].get("added_cond_kwargs") or {}
    handed = [*calls[0].values(), *nested.values()]
    # Without a caption is not the same as an empty prompt, where a pipeline makes this difference.
    differs = pipeline.config.get("force_zeros_for_empty_prompt", False) or hasattr(pipeline, "system_prompt")
    rows = [row for row, caption in enumerate(CAPTIONS) if caption or not differs]
    if name == "z_image":  # it takes the tokens of each caption instead of padding and a mask
        mask, padded = found.pop("prompt_mask"), found.pop("prompt_embeds")
        assert all(torch.equal(padded[row][mask[row]], calls[0]["cap_feats"][row]) for row in rows)
    for key, tensor in found.items():
        assert any(starts_with(other, tensor, rows) for other in handed), key


def starts_with(argument: Any, tensor: torch.Tensor, rows: list[int]) -> bool:
    """Whether a tensor is that argument; one for text and image begins with the text's."""
    if not isinstance(argument, torch.Tensor) or argument.dim() != tensor.dim():
        return False
    of_text = argument[:, : tensor.shape[1]]
    return of_text.shape == tensor.shape and torch.equal(tensor[rows], of_text[rows].to(tensor.dtype))


@pytest.mark.parametrize("name", WITH_LATENTS)
def test_latents_are_drawn_as_the_autoencoder_draws_them(name: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    vae: Any = getattr(diffusers, family.autoencoder_class_name).from_pretrained(folder / "vae")
    size = small_size(family, 64, 32)
    frames = () if size.num_frames is None else (size.num_frames,)
    images = torch.rand(3, 3, *frames, 64, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
    noise = torch.randn(3, *latent_shape(family, size), generator=torch.Generator().manual_seed(5))
    is_video_vae = any(isinstance(module, nn.Conv3d) for module in vae.modules())
    with torch.no_grad():
        # Qwen-Image's takes an image as a clip of one frame.
        taken = images.unsqueeze(2) if is_video_vae and not frames else images
        distribution = vae.encode(taken).latent_dist
        drawn = distribution.sample(torch.Generator().manual_seed(5))
        moments = family.encode_images(family.load_vae(folder, torch.float32), images)
    expected = scaled_by_hand(vae, drawn).reshape(noise.shape)
    torch.testing.assert_close(family.latents_from_moments(moments, noise), expected, rtol=1e-6, atol=1e-6)
    # Without noise it is the mean: what the scaling of the published model says, by hand.
    mean = scaled_by_hand(vae, distribution.mean).reshape(noise.shape)
    torch.testing.assert_close(family.latents_from_moments(moments, torch.zeros_like(noise)), mean)


def scaled_by_hand(vae: Any, latents: torch.Tensor) -> Any:
    """As pipelines undo it: by one shift and factor, or by those of each channel, settings or weights."""
    config = vae.config
    # LTX-Video's are weights.
    stated = dict(vae.named_buffers()) if "latents_mean" in vae.state_dict() else config
    if stated.get("latents_mean") is None:
        return (latents - (config.get("shift_factor") or 0.0)) * config.scaling_factor
    per_channel = (1, -1, *[1] * (latents.dim() - 2))
    mean, std = (torch.as_tensor(stated[key]).view(per_channel) for key in ("latents_mean", "latents_std"))
    return (latents - mean) / std * config.get("scaling_factor", 1.0)


@pytest.mark.parametrize("name", TINY_VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_loaded_in_the_asked_type(name: str, dtype: torch.dtype, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    denoiser = open_family(folder).load_denoiser(folder, dtype)
    assert not_in(dtype, denoiser) == set()


@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder_2"])
def test_pickled_weights_are_refused(part: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_pipeline("flux"), folder)
    for file in (folder / part).glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    family = open_family(folder)
    loaders = {"transformer": family.load_denoiser, "vae": family.load_vae, "text_encoder_2": family.load_text_encoders}
    with pytest.raises(Refused, match=rf"{part} holds no \.safetensors file.*can run code"):
        loaders[part](folder, torch.float32)


def test_autoencoder_is_frozen(tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("sd3")
    vae: nn.Module = open_family(folder).load_vae(folder, torch.float32)
    assert not vae.training
    assert not any(p.requires_grad for p in vae.parameters())


WITH_BETAS = [name for name, facts in TRAINABLE.items() if not facts.is_flow_matching]


@pytest.mark.parametrize("name", {row.family: name for name, row in catalog.denoisers().items()}.values())
def test_the_facts_know_which_families_are_trained_with_flow_matching(name: str) -> None:
    family = family_from_catalogue(name)
    assert isinstance(family.objective(ObjectiveChoice()), FlowMatching) == family.facts.is_flow_matching


def with_scheduler(family: Family, **changes: object) -> Family:
    """The same model with another scheduler in its folder."""
    scheduler = {**(family.architecture.scheduler or {}), **changes}
    return type(family)(dataclasses.replace(family.architecture, scheduler=scheduler))


@pytest.mark.parametrize("name", WITH_BETAS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("beta_schedule", "squaredcos_cap_v2"),
        ("prediction_type", "sample"),
        ("timestep_type", "continuous"),
        ("rescale_betas_zero_snr", True),
        ("use_flow_sigmas", True),
        ("trained_betas", [0.1, 0.2]),
    ],
)
def test_a_model_trained_with_another_objective_is_refused(
    name: str, key: str, value: object, tiny_pipeline: TinyPipeline
) -> None:
    family = open_family(tiny_pipeline(name))
    family.objective(ObjectiveChoice())
    said = f"{key} {value!r}" if isinstance(value, str) else key
    with pytest.raises(Refused, match=said):
        with_scheduler(family, **{key: value}).objective(ObjectiveChoice())


@pytest.mark.parametrize("scheduler", [EDMEulerScheduler, FlowMatchEulerDiscreteScheduler])
def test_a_scheduler_without_betas_is_refused_by_its_name(scheduler: Any, tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline("sdxl"))
    settings = {**scheduler().config, "_class_name": scheduler.__name__}
    changed = type(family)(dataclasses.replace(family.architecture, scheduler=settings))
    with pytest.raises(Refused, match=rf"\({scheduler.__name__}\) has no beta_schedule"):
        changed.objective(ObjectiveChoice())


@pytest.mark.parametrize("name", WITH_BETAS)
def test_noise_and_target_are_those_of_the_checkpoints_scheduler(name: str, tiny_pipeline: TinyPipeline) -> None:
    """Of diffusers' own scheduler with the same settings, whether noise or velocity is predicted."""
    family = open_family(tiny_pipeline(name))
    draw = torch.Generator().manual_seed(2)
    clean, noise = (torch.randn(3, 4, 8, 8, generator=draw) for _ in range(2))
    for prediction in ("epsilon", "v_prediction"):
        changed = with_scheduler(family, prediction_type=prediction)
        theirs = DDPMScheduler.from_config(changed.architecture.scheduler)
        objective = changed.objective(ObjectiveChoice())
        level = objective.noise_level(torch.tensor([0.0, 0.4, 0.999999]))
        assert level.tolist() == [0, 400, 999]
        torch.testing.assert_close(objective.noisy(clean, noise, level), theirs.add_noise(clean, noise, level))
        expected = noise if prediction == "epsilon" else theirs.get_velocity(clean, noise, level)
        torch.testing.assert_close(objective.target(clean, noise, level), expected)


def test_sdxl_without_a_caption_is_given_zeros_as_by_its_pipeline(tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("sdxl")
    family = open_family(folder)
    encoders = family.load_text_encoders(folder, torch.float32)
    with torch.no_grad():
        found = family.encode_text(encoders, ["", CAPTIONS[0]], NUM_TEXT_TOKENS)
        _, negative, _, negative_pooled = encoders.encode_prompt(CAPTIONS[0])
    for key, theirs in (("prompt_embeds", negative), ("pooled_embeds", negative_pooled)):
        assert torch.equal(found[key][:1], theirs)
        assert found[key][0].abs().max() == 0
        assert found[key][1].abs().max() > 0
    encoders.register_to_config(force_zeros_for_empty_prompt=False)
    with torch.no_grad():
        assert family.encode_text(encoders, [""], NUM_TEXT_TOKENS)["prompt_embeds"].abs().max() > 0


def test_a_model_without_text_takes_no_captions(tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline("ddpm"))
    assert family.conditioning_specs(2, 16) == {}
    with pytest.raises(AssertionError, match="ddpm models take no captions"):
        family.encode_text(None, ["a caption"], 16)
    with pytest.raises(AssertionError, match="ddpm models take no captions"):
        family.pipeline_text({}, {})


def test_hunyuan_video_keeps_the_spaces_of_a_byte_level_tokenizer(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """As the published one is. The class that its index names loses them, and the prompt's crop would be elsewhere."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_pipeline("hunyuan_video"), folder)
    shutil.rmtree(folder / "tokenizer")
    build_qwen_tokenizer().save_pretrained(folder / "tokenizer")
    text = "a small red circle"
    plain = transformers.LlamaTokenizerFast.from_pretrained(folder / "tokenizer")
    assert plain.decode(plain(text).input_ids, skip_special_tokens=True) != text
    tokenizer = open_family(folder).load_text_encoders(folder, torch.float32).tokenizer
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
