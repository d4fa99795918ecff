"""What a denoiser is called with in training is what its own pipeline calls it with when sampling."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from torch import Tensor, nn

from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily

TinyPipeline = Callable[..., Path]

HEIGHT_PX, WIDTH_PX = 64, 96
NUM_TEXT_TOKENS = 16
GUIDANCE = 2.75
VAE_FACTOR = 8


class Recorder(nn.Module):
    """Stands in for a denoiser: remembers its arguments and answers with its first."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}

    def forward(self, **arguments: Any) -> tuple[Tensor]:
        self.arguments = arguments
        hidden: Tensor = arguments["hidden_states"]
        return (hidden,)


def called_by_pipeline(family: TrainableFamily, folder: Path) -> dict[str, Any]:
    """The arguments of the first of two denoising steps."""
    pipeline = family.load_pipeline(folder, torch.float32)
    calls: list[dict[str, Any]] = []
    denoiser: nn.Module = getattr(pipeline, family.denoiser_part)
    denoiser.register_forward_pre_hook(lambda _, __, arguments: calls.append(arguments), with_kwargs=True)
    pipeline(
        "a small red circle on blue",
        height=HEIGHT_PX,
        width=WIDTH_PX,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(3),
        output_type="latent",
        max_sequence_length=NUM_TEXT_TOKENS,
        guidance_scale=GUIDANCE,
    )
    return calls[0]


def called_by_family(family: Family, noisy: Tensor, time: Tensor, conditioning: dict[str, Tensor]) -> dict[str, Any]:
    recorder = Recorder()
    answered = family.predict(recorder, noisy, time, conditioning, guidance_scale=GUIDANCE)
    # The recorder answers with what it was given, so unpacking must undo packing.
    assert torch.equal(answered, noisy)
    return recorder.arguments


def assert_same_call(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in ours.keys() | theirs.keys():
        one, other = ours.get(name), theirs.get(name)
        if isinstance(other, Tensor):
            assert isinstance(one, Tensor), name
            torch.testing.assert_close(one.float(), other.float(), rtol=1e-6, atol=0, msg=f"{name} differs")
        else:
            # What says nothing about attention may be left out.
            assert one == other or (name == "joint_attention_kwargs" and not other), name


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_flux(variant: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux", variant)
    family = open_family(folder)
    theirs = called_by_pipeline(family, folder)
    noisy = FluxPipeline._unpack_latents(theirs["hidden_states"], HEIGHT_PX, WIDTH_PX, VAE_FACTOR)
    conditioning = {
        "prompt_embeds": theirs["encoder_hidden_states"],
        "pooled_embeds": theirs["pooled_projections"],
    }
    ours = called_by_family(family, noisy, theirs["timestep"] * 1000, conditioning)
    assert_same_call(ours, theirs)
    if variant == "dev":
        assert ours["guidance"].tolist() == [GUIDANCE]
    else:
        assert ours["guidance"] is None


def test_flux_packs_a_batch_as_its_pipeline_does(tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline("flux"))
    batch, channels, height, width = 3, 4, 6, 10
    noisy = torch.randn(batch, channels, height, width)
    conditioning = {"prompt_embeds": torch.randn(batch, 5, 32), "pooled_embeds": torch.randn(batch, 32)}
    ours = called_by_family(family, noisy, torch.tensor([1.0, 500.0, 1000.0]), conditioning)
    assert torch.equal(ours["hidden_states"], FluxPipeline._pack_latents(noisy, batch, channels, height, width))
    positions = FluxPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, noisy.device, noisy.dtype)
    assert torch.equal(ours["img_ids"], positions)
    assert torch.equal(ours["txt_ids"], torch.zeros(5, 3))
    assert ours["timestep"].tolist() == pytest.approx([0.001, 0.5, 1.0])
    assert ours["guidance"].tolist() == [GUIDANCE] * batch


@pytest.mark.parametrize("variant", ["3.5", "3"])
def test_sd3(variant: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("sd3", variant)
    family = open_family(folder)
    theirs = called_by_pipeline(family, folder)
    conditioning = {
        "prompt_embeds": theirs["encoder_hidden_states"],
        "pooled_embeds": theirs["pooled_projections"],
    }
    assert_same_call(called_by_family(family, theirs["hidden_states"], theirs["timestep"], conditioning), theirs)


def test_ddpm(tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("ddpm")
    family = open_family(folder)
    unet = family.load_pipeline(folder, torch.float32).unet
    noisy, time = torch.randn(2, 3, 32, 32), torch.tensor([0, 999])
    with torch.no_grad():
        ours = family.predict(unet, noisy, time, {}, guidance_scale=GUIDANCE)
        assert torch.equal(ours, unet(noisy, time).sample)
