"""What is made of a model: batched images are those sampled alone, denoising undoes noise, losses are training's."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretune.catalog import TRAINABLE
from foretune.choices.training import ObjectiveChoice
from foretune.data.buckets import Bucket
from foretune.models.family import Conditioning
from foretune.models.flux import Flux
from foretune.models.locating import open_family
from foretune.models.objectives import Epsilon, FlowMatching, Objective, Velocity
from foretune.quality import batched
from foretune.quality.batched import images_at_once, sample_grid
from foretune.quality.denoising import Denoising
from foretune.step.precision import PrecisionPolicy
from foretune.training.encoding import encode_captions
from foretune.training.not_finite import NotFinite
from foretune.training.sampling import SampleRequest, sample
from tests.models.made_inputs import small_size
from tests.virtual_clock import VirtualClock

FP32 = PrecisionPolicy("fp32")
NUM_TEXT_TOKENS = 48
"""Enough for the instructions that some pipelines write before a caption."""
PROMPTS = ("a small red circle on blue", "a large white cross on black", "a medium green square on red")


@pytest.mark.parametrize("name", TRAINABLE)
def test_images_in_a_batch_are_those_sampled_alone(name: str, tiny_pipeline: Callable[..., Path]) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    size = small_size(family)
    request = SampleRequest(prompts=PROMPTS, seed=5, num_inference_steps=2, size=size, num_text_tokens=NUM_TEXT_TOKENS)
    pipeline = family.load_pipeline(folder, torch.float32)
    encoded = {}
    if family.text_parts:
        texts = (*PROMPTS, "")
        encoded = dict(zip(texts, encode_captions(family, pipeline, texts, NUM_TEXT_TOKENS), strict=True))
    heard: list[tuple[int, int]] = []
    found = sample_grid(family, pipeline, request, 2, encoded, lambda done, total: heard.append((done, total)))
    assert heard[-1] == (6, 6)
    assert found.images_per_s > 0
    for number in range(2):
        alone = sample(family, pipeline, SampleRequest(**{**vars(request), "seed": 5 + number}))
        for prompt in range(3):
            # Sums of another batch are taken in another order.
            np.testing.assert_allclose(found.images[prompt][number], alone[prompt].clip(0, 1), atol=2e-5)
    # The control: another prompt, or another seed, is another image.
    assert np.abs(found.images[0][0] - found.images[0][1]).max() > 0.01
    assert np.abs(found.images[0][0] - found.images[1][0]).max() > 0.01


def test_samples_with_nan_are_refused(tiny_pipeline: Callable[..., Path]) -> None:
    """The pipeline would clip them, and metrics would be computed from them."""
    folder = tiny_pipeline("ddpm")
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    with torch.no_grad():
        pipeline.unet.conv_out.bias.fill_(float("nan"))
    request = SampleRequest(prompts=("",), seed=0, num_inference_steps=1, size=Bucket(32, 32), num_text_tokens=16)
    with pytest.raises(NotFinite, match="one of the samples holds NaN"):
        sample_grid(family, pipeline, request, 1, {}, lambda *_: None)


class Slow:
    """A pipeline whose first call takes 0.5 s, others 0.02 s, whatever it is asked for; it counts each call's steps."""

    text_parts = ()

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.unet = nn.Identity()
        self.steps: list[int] = []

    def sampling_arguments(self, *_: object) -> dict[str, object]:
        return {}

    def __call__(self, *, num_inference_steps: int, batch_size: int, **_: object) -> "Slow":
        self.clock.advance(0.02 if self.steps else 0.5)
        self.steps.append(num_inference_steps)
        self.images = torch.zeros(batch_size, 3, 8, 8)
        return self


@pytest.mark.parametrize(("num_images", "steps", "num_counted"), [(6, [2, 4], 6), (96, [4, 4], 32)])
def test_what_warms_the_machine_up_is_not_counted(
    num_images: int, steps: list[int], num_counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call has a shorter one before it; of several the first does not count."""
    clock = VirtualClock()
    monkeypatch.setattr(batched, "time", SimpleNamespace(perf_counter=clock))
    pipeline = Slow(clock)
    request = SampleRequest(
        prompts=("",) * num_images, seed=0, num_inference_steps=4, size=Bucket(32, 32), num_text_tokens=8
    )
    found = sample_grid(cast(Any, pipeline), pipeline, request, 1, {}, lambda *_: None)
    assert pipeline.steps == steps
    assert found.images_per_s == pytest.approx(num_counted / 0.02)


def test_large_images_are_sampled_one_by_one() -> None:
    assert images_at_once(Bucket(32, 32)) == 64
    assert images_at_once(Bucket(256, 256)) == 2
    assert images_at_once(Bucket(1024, 1024)) == 1


class Knowing(Flux):
    """A family whose denoiser knows the clean image: its answers are right, or off by a factor."""

    def __init__(self, objective: Objective, clean: Tensor, factor: float = 1.0) -> None:
        self._objective, self._clean, self._factor = objective, clean, factor

    def predict(
        self, denoiser: nn.Module, noisy: Tensor, time: Tensor, conditioning: Conditioning, *, guidance_scale: float
    ) -> Tensor:
        objective = self._objective
        level = time / objective.num_levels if isinstance(objective, FlowMatching) else time
        one, nothing = torch.ones_like(noisy), torch.zeros_like(noisy)
        kept, added = objective.noisy(one, nothing, level), objective.noisy(nothing, one, level)
        noise = (noisy - kept * self._clean) / added
        return self._factor * objective.target(self._clean, noise, level)


@pytest.mark.parametrize(
    "objective",
    [FlowMatching("uniform", "none", shift=3.0), Epsilon(), Velocity()],
    ids=["flow", "epsilon", "velocity"],
)
@pytest.mark.parametrize("num_steps", [1, 5])
def test_a_denoiser_that_is_right_gives_the_image_back(objective: Objective, num_steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    clean, noise = (torch.randn(2, 3, 4, 4, generator=generator) for _ in range(2))
    for factor, is_near in ((1.0, True), (0.9, False)):
        family = Knowing(objective, clean, factor)
        denoising = Denoising(family, nn.Identity(), objective, FP32, 1.0)
        error = (denoising(clean, noise, 0.5, {}, num_steps) - clean).abs().max()
        assert bool(error < 1e-3) == is_near


def test_noise_is_added_up_to_the_level_asked_for() -> None:
    objective = FlowMatching("uniform", "none", shift=3.0)
    given: list[Tensor] = []

    class Listening(Knowing):
        def predict(self, denoiser: nn.Module, noisy: Tensor, time: Tensor, *_: object, **__: object) -> Tensor:
            given.append(time)
            return torch.zeros_like(noisy)

    clean = torch.zeros(1, 3, 4, 4)
    denoising = Denoising(Listening(objective, clean), nn.Identity(), objective, FP32, 1.0)
    denoising(clean, torch.ones_like(clean), 0.75, {}, 3)
    assert [round(float(time)) for time in given] == [750, 500, 250]


def test_latents_go_to_images_as_the_pipeline_has_it(tiny_pipeline: Callable[..., Path]) -> None:
    """What the pipeline decodes itself: latents / scale + shift."""
    folder = tiny_pipeline("flux")
    family = open_family(folder)
    vae = family.load_vae(folder, torch.float32)
    latents = torch.randn(2, *family.latent_shape(32, 32), generator=torch.Generator().manual_seed(1))
    config: Any = vae.config
    decode: Any = vae.decode
    with torch.no_grad():
        found = family.images_from_latents(vae, latents)
        expected = decode(latents / config.scaling_factor + config.shift_factor).sample
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_objective_of_a_family_is_training_s(tiny_pipeline: Callable[..., Path]) -> None:
    family = open_family(tiny_pipeline("flux"))
    assert isinstance(family.objective(ObjectiveChoice()), FlowMatching)
