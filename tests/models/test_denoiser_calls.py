"""What a denoiser is called with in training is what its own pipeline calls it with when sampling."""

import inspect
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from PIL import Image
from torch import Tensor, nn

from foretune.catalog import TRAINABLE
from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily
from tests.models.made_inputs import gradient_image, latent_shape, sampling_inputs, small_size

TinyPipeline = Callable[..., Path]

WITH_TEXT = [(name, variant) for name, facts in TRAINABLE.items() if facts.has_text for variant in facts.tiny_variants]
CAPTION = "a small red circle on blue"
HEIGHT_PX, WIDTH_PX = 64, 96
NAMES_THAT_MAY_BE_LEFT_OUT = ("joint_attention_kwargs", "attention_kwargs")
NUM_TEXT_TOKENS = 16
GUIDANCE = 2.75
SEED = 3


def pil_to_tensor(image: Image.Image) -> Tensor:
    """An image in [-1, 1], (3, H, W)."""
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 127.5 - 1


def by_name(denoiser_class: type[nn.Module], given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by their names, in the order of the denoiser's own."""
    bound = inspect.signature(denoiser_class.forward).bind(None, *given, **named)
    bound.apply_defaults()
    return dict(islice(bound.arguments.items(), 1, None))


class Recorder(nn.Module):
    """Stands in for a denoiser: remembers its arguments and answers with its first."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.denoiser_class = family.denoiser_class()
        self.arguments: dict[str, Any] = {}

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor]:
        self.arguments = by_name(self.denoiser_class, given, named)
        first: Tensor = next(iter(self.arguments.values()))
        return (first,)


def called_by_pipeline(family: TrainableFamily, pipeline: Any, guidance: float) -> dict[str, Any]:
    """The arguments of the first of two denoising steps."""
    calls: list[dict[str, Any]] = []
    denoiser: nn.Module = getattr(pipeline, family.denoiser_part)
    denoiser.register_forward_pre_hook(
        lambda module, given, named: calls.append(by_name(type(module), given, named)), with_kwargs=True
    )
    pipeline(
        prompt=CAPTION,
        **sampling_inputs(family, small_size(family, HEIGHT_PX, WIDTH_PX)),
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(SEED),
        output_type="latent",
        **family.sampling_arguments(NUM_TEXT_TOKENS, guidance),
    )
    return calls[0]


def without_masked_padding(call: dict[str, Any]) -> dict[str, Any]:
    """The same call for one caption of just its tokens, which needs no mask."""
    mask = call["encoder_hidden_states_mask"]
    assert mask.dtype == torch.bool
    tokens = call["encoder_hidden_states"][mask][None]
    return {**call, "encoder_hidden_states": tokens, "encoder_hidden_states_mask": None}


def called_by_family(
    family: Family, noisy: Tensor, time: Tensor, conditioning: dict[str, Tensor], guidance: float
) -> dict[str, Any]:
    recorder = Recorder(family)
    answered = family.predict(recorder, noisy, time, conditioning, guidance_scale=guidance)
    # The recorder answers with what it was given, so unpacking must undo packing; some predict the other direction.
    assert torch.equal(answered[:, : noisy.shape[1]].abs(), noisy.abs())
    return recorder.arguments


def assert_same_call(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in ours.keys() | theirs.keys():
        one, other = ours.get(name), theirs.get(name)
        if isinstance(other, list) and isinstance(other[0], Tensor):
            assert isinstance(one, list), name
            assert len(one) == len(other), name
            for index, pair in enumerate(zip(one, other, strict=True)):
                assert_same_call({f"{name} {index}": pair[0]}, {f"{name} {index}": pair[1]})
        elif isinstance(other, Tensor):
            assert isinstance(one, Tensor), name
            # One time for the whole batch is as good as one for each sample.
            expected = other.float().expand_as(one)
            torch.testing.assert_close(one.float(), expected, rtol=1e-6, atol=0, msg=f"{name} differs")
        elif isinstance(one, dict) and isinstance(other, dict) and other:
            assert_same_call(one, other)
        else:
            # What says nothing about attention may be left out.
            assert one == other or (name in NAMES_THAT_MAY_BE_LEFT_OUT and not other), name


@pytest.mark.parametrize(("name", "variant"), WITH_TEXT)
def test_a_denoiser_is_called_as_by_its_pipeline(name: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name, variant)
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    # Without guidance where it would double the batch.
    guidance = family.facts.unguided_scale if family.facts.guides_in_one_batch else GUIDANCE
    theirs = called_by_pipeline(family, pipeline, guidance)
    size = small_size(family, HEIGHT_PX, WIDTH_PX)
    noisy = torch.randn(1, *latent_shape(family, size), generator=torch.Generator().manual_seed(SEED))
    if family.facts.is_unet:
        noisy = theirs["sample"]  # some of their schedulers scale it
    with torch.no_grad():
        conditioning = family.encode_text(pipeline, [CAPTION], NUM_TEXT_TOKENS)
        if size.num_frames is not None:
            frame = pil_to_tensor(gradient_image(size))
            clip = torch.stack([frame, *torch.rand(size.num_frames - 1, *frame.shape)], dim=1)[None]
            conditioning |= family.encode_first_frames(pipeline.vae, pipeline, clip)
    conditioning |= family.image_conditioning(torch.tensor([[HEIGHT_PX, WIDTH_PX, 0, 0, HEIGHT_PX, WIDTH_PX]]))
    times = pipeline.scheduler.timesteps[:1]
    if pipeline.scheduler.config.get("invert_sigmas", False):
        times = 1000 - times  # theirs runs from noise to data
    ours = called_by_family(family, noisy, times, conditioning, guidance)
    if theirs.get("encoder_hidden_states_mask", ...) is None:
        ours = without_masked_padding(ours)
    assert_same_call(ours, theirs)


def test_guidance_is_embedded_in_flux_dev_only(tiny_pipeline: TinyPipeline) -> None:
    noisy, time = torch.randn(1, 4, 4, 4), torch.tensor([500.0])
    conditioning = {"prompt_embeds": torch.randn(1, 5, 32), "pooled_embeds": torch.randn(1, 32)}
    for variant, expected in (("dev", [GUIDANCE]), ("schnell", None)):
        family = open_family(tiny_pipeline("flux", variant))
        found = called_by_family(family, noisy, time, conditioning, GUIDANCE)["guidance"]
        assert (None if found is None else found.tolist()) == expected


def test_flux_packs_a_batch_as_its_pipeline_does(tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline("flux"))
    batch, channels, height, width = 3, 4, 6, 10
    noisy = torch.randn(batch, channels, height, width)
    conditioning = {"prompt_embeds": torch.randn(batch, 5, 32), "pooled_embeds": torch.randn(batch, 32)}
    ours = called_by_family(family, noisy, torch.tensor([1.0, 500.0, 1000.0]), conditioning, GUIDANCE)
    assert torch.equal(ours["hidden_states"], FluxPipeline._pack_latents(noisy, batch, channels, height, width))
    positions = FluxPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, noisy.device, noisy.dtype)
    assert torch.equal(ours["img_ids"], positions)
    assert torch.equal(ours["txt_ids"], torch.zeros(5, 3))
    assert ours["timestep"].tolist() == pytest.approx([0.001, 0.5, 1.0])
    assert ours["guidance"].tolist() == [GUIDANCE] * batch


def test_ddpm(tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("ddpm")
    family = open_family(folder)
    unet = family.load_pipeline(folder, torch.float32).unet
    noisy, time = torch.randn(2, 3, 32, 32), torch.tensor([0, 999])
    with torch.no_grad():
        ours = family.predict(unet, noisy, time, {}, guidance_scale=GUIDANCE)
        assert torch.equal(ours, unet(noisy, time).sample)
