"""The training step against one written out by hand, and its promises about accumulation, clipping and phases."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from diffusers import DDPMScheduler, FluxPipeline, LTXPipeline
from torch import Tensor, nn
from torch.nn import functional

from foretune.catalog import TRAINABLE
from foretune.core.vocabulary import StepPhase
from foretune.data.batch import Batch
from foretune.models import Family
from foretune.step.optimizers.base import Direct, Layout
from foretune.step.training_step import TrainingStep
from tests.step.small_steps import gradients, made_batch, small_step, split_batch

TinyPipeline = Callable[..., Path]

CASES = [(name, variant) for name, facts in TRAINABLE.items() for variant in facts.tiny_variants]


SCALINGS = {"sd1": 0.18215, "sdxl": 0.13025, "pixart": 0.13025}
"""Of those that predict noise or velocity at one of a thousand levels."""


def clean_latents(batch: Batch, scaling: float, shift: float) -> Tensor:
    assert batch.moments is not None
    assert batch.posterior_noise is not None
    mean, log_variance = batch.moments[:, :4], batch.moments[:, 4:]
    return (mean + (log_variance / 2).exp() * batch.posterior_noise - shift) * scaling


def predicted_noise_loss(family: Family, denoiser: Any, batch: Batch) -> Tensor:
    assert batch.conditioning is not None
    betas = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    if family.name == "pixart":
        betas = {"beta_start": 1e-4, "beta_end": 0.02, "beta_schedule": "linear"}
    scheduler = DDPMScheduler(num_train_timesteps=1000, **betas)
    latents, timesteps = clean_latents(batch, SCALINGS[family.name], 0.0), (batch.uniform * 1000).long()
    noisy, text = scheduler.add_noise(latents, batch.noise, timesteps), batch.conditioning["prompt_embeds"]
    if family.name == "pixart":
        mask, sizes = batch.conditioning["prompt_mask"], {"resolution": None, "aspect_ratio": None}
        both = denoiser(noisy, text, timesteps, added_cond_kwargs=sizes, encoder_attention_mask=mask).sample
        return functional.mse_loss(both.chunk(2, dim=1)[0], batch.noise)
    added = None
    if family.name == "sdxl":
        added = {"text_embeds": batch.conditioning["pooled_embeds"], "time_ids": batch.conditioning["time_ids"]}
    predicted = denoiser(noisy, timesteps, text, added_cond_kwargs=added).sample
    predicts_velocity = (family.architecture.scheduler or {}).get("prediction_type") == "v_prediction"
    target = scheduler.get_velocity(latents, batch.noise, timesteps) if predicts_velocity else batch.noise
    return functional.mse_loss(predicted, target)


def video_loss(family: Family, denoiser: Any, batch: Batch) -> Tensor:
    """Flow matching on clips: all but one draw the sigmoid of normal numbers, shifted; Mochi draws evenly."""
    assert batch.moments is not None
    assert batch.posterior_noise is not None
    assert batch.conditioning is not None
    mean, log_variance = batch.moments.chunk(2, dim=1)
    sample = mean + (log_variance / 2).exp() * batch.posterior_noise
    vae = family.architecture.vae or {}
    if family.name == "ltx_video":
        latents = sample  # already normalised, by weights of the autoencoder
    elif family.name == "hunyuan_video":
        latents = sample * vae["scaling_factor"]
    else:
        middle, spread = (torch.tensor(vae[key]).view(1, -1, 1, 1, 1) for key in ("latents_mean", "latents_std"))
        latents = (sample - middle) / spread * vae.get("scaling_factor", 1.0)
    level = batch.uniform.float()
    shift = {"wan": 3.0, "hunyuan_video": 7.0, "ltx_video": 4.7}.get(family.name)
    if shift is not None:
        drawn = torch.sigmoid(torch.distributions.Normal(0, 1).icdf(level))
        level = shift * drawn / (1 + (shift - 1) * drawn)
    spread = level.view(-1, 1, 1, 1, 1)
    noisy, velocity = (1 - spread) * latents + spread * batch.noise, batch.noise - latents
    given = batch.conditioning
    text = given["prompt_embeds"]
    if family.name == "mochi":
        # It counts from noise to data, and predicts in that direction.
        forwards = denoiser(noisy, text, 1000 * (1 - level), given["prompt_mask"]).sample
        return functional.mse_loss(-forwards, velocity)
    if family.name == "hunyuan_video":
        guidance = torch.full((len(noisy),), 3500.0)
        others = (text, given["prompt_mask"], given["pooled_embeds"], guidance)
        return functional.mse_loss(denoiser(noisy, 1000 * level, *others).sample, velocity)
    if family.name == "ltx_video":
        sizes, scale = noisy.shape[2:], (2 / 25, 8, 8)
        tokens = LTXPipeline._pack_latents(noisy)
        predicted = denoiser(tokens, text, 1000 * level, given["prompt_mask"], *sizes, scale).sample
        return functional.mse_loss(LTXPipeline._unpack_latents(predicted, *sizes), velocity)
    if "guide_latents" in given:
        noisy = torch.cat([noisy, given["guide_latents"]], dim=1)
    predicted = denoiser(noisy, 1000 * level, text, given.get("image_embeds")).sample
    return functional.mse_loss(predicted, velocity)


def per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(values).view(1, -1, 1, 1)


def forwards_in_time(denoiser: Any, noisy: Tensor, level: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """What Lumina 2 and Z-Image predict: they count from noise to data."""
    text, mask = given["prompt_embeds"], given["prompt_mask"]
    if type(denoiser).__name__.startswith("Lumina"):
        return cast("Tensor", denoiser(noisy, 1 - level, text, mask).sample)
    captions = [one[of_one] for one, of_one in zip(text, mask, strict=True)]
    return torch.stack(denoiser([image[:, None] for image in noisy], 1 - level, captions).sample)[:, :, 0]


def packed_prediction(
    family: Family, denoiser: Any, noisy: Tensor, level: Tensor, given: Mapping[str, Tensor]
) -> Tensor:
    """What those predict that read 2 x 2 latents as a token."""
    text = given["prompt_embeds"]
    size, channels, height, width = noisy.shape
    packed = FluxPipeline._pack_latents(noisy, size, channels, height, width)
    # All but Qwen-Image place the image's tokens alike.
    others: dict[str, Any] = {
        "img_ids": FluxPipeline._prepare_latent_image_ids(size, height // 2, width // 2, "cpu", torch.float32),
        "txt_ids": torch.zeros(text.shape[1], 3),
    }
    if family.name == "flux":
        others["pooled_projections"] = given["pooled_embeds"]
        others["guidance"] = torch.full((size,), 3.5) if denoiser.config.guidance_embeds else None
    elif family.name == "chroma":
        of_image = torch.ones(size, packed.shape[1], dtype=torch.bool)
        others["attention_mask"] = torch.cat([given["prompt_mask"], of_image], dim=1)
    elif family.name == "ovis_image":
        others["txt_ids"] = torch.tensor([[0, place, place] for place in range(text.shape[1])])
    elif family.name == "qwen_image":
        grids = [[(1, height // 2, width // 2)]] * size
        others = {"encoder_hidden_states_mask": given["prompt_mask"], "img_shapes": grids}
    predicted = denoiser(packed, encoder_hidden_states=text, timestep=level, **others).sample
    unpacked: Tensor = FluxPipeline._unpack_latents(predicted, height * 8, width * 8, 8)
    return unpacked


def reference_loss(family: Family, denoiser: Any, batch: Batch) -> Tensor:
    """The loss as a training script for this one family would have it, from the papers and from diffusers alone."""
    uniform = batch.uniform.float()
    if family.name == "ddpm":
        assert batch.images is not None
        scheduler = DDPMScheduler(num_train_timesteps=1000, beta_start=1e-4, beta_end=0.02)
        timesteps = (uniform * 1000).long()
        predicted = denoiser(scheduler.add_noise(batch.images, batch.noise, timesteps), timesteps).sample
        return functional.mse_loss(predicted, batch.noise)
    assert batch.conditioning is not None
    if family.name in SCALINGS:
        return predicted_noise_loss(family, denoiser, batch)
    if family.is_video:
        return video_loss(family, denoiser, batch)
    latents = clean_latents(batch, *((1.5305, 0.0609) if family.name == "sd3" else (0.3611, 0.1159)))
    if family.name == "qwen_image":
        vae = family.architecture.vae or {}
        latents = (clean_latents(batch, 1.0, 0.0) - per_channel(vae["latents_mean"])) / per_channel(vae["latents_std"])
    is_even = family.name in ("flux", "lumina2", "z_image", "qwen_image")
    level = uniform if is_even else torch.sigmoid(torch.distributions.Normal(0, 1).icdf(uniform))
    shift = {"sd3": 3.0, "lumina2": 6.0, "z_image": 3.0}.get(family.name, 1.0)
    level = shift * level / (1 + (shift - 1) * level)
    spread = level.view(-1, 1, 1, 1)
    noisy = (1 - spread) * latents + spread * batch.noise
    velocity = batch.noise - latents
    text = batch.conditioning["prompt_embeds"]
    if family.name == "sd3":
        predicted = denoiser(noisy, text, batch.conditioning["pooled_embeds"], level * 1000).sample
        return functional.mse_loss(predicted, velocity)
    if family.name in ("lumina2", "z_image"):
        return functional.mse_loss(-forwards_in_time(denoiser, noisy, level, batch.conditioning), velocity)
    return functional.mse_loss(packed_prediction(family, denoiser, noisy, level, batch.conditioning), velocity)


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_gradient_is_that_of_a_step_written_by_hand(name: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline(name, variant))
    batch = made_batch(small.family, 3)
    reference = copy.deepcopy(small.step.denoiser).requires_grad_(requires_grad=True)
    loss = reference_loss(small.family, reference, batch)
    loss.backward()
    torch.testing.assert_close(small.step.loss(batch).detach(), loss.detach(), rtol=1e-6, atol=0)
    found = gradients(small.step, batch)
    expected = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TRAINABLE)
def test_update_is_that_of_a_loop_written_by_hand(name: str, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline(name), train={"max_grad_norm": 0.5}, optimizer={"weight_decay": 0.1})
    batches = [made_batch(small.family, 2, seed=seed) for seed in range(3)]
    reference = copy.deepcopy(small.step.denoiser)
    optimizer = torch.optim.AdamW(reference.parameters(), betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for index, batch in enumerate(batches):
        lr = 1e-3 * (index + 1)
        # The same gradients go into both optimizers: where one is almost zero, AdamW turns rounding into a full step.
        for key, gradient in gradients(small.step, batch).items():
            reference.get_parameter(key).grad = gradient
        norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        outcome = small.step(index, lr, [batch], 1)
        assert outcome.grad_norm is not None
        torch.testing.assert_close(outcome.grad_norm, norm)
        for key, weight in small.step.trained.items():
            torch.testing.assert_close(weight, reference.get_parameter(key), rtol=1e-6, atol=1e-8)


def plain_descent(step: TrainingStep) -> TrainingStep:
    """The same step with an optimizer that subtracts the gradient, so that it can be read off the weights."""
    descent = Direct(torch.optim.SGD(step.trained.values(), lr=1.0), Layout(of_weight=lambda _: {}))
    return dataclasses.replace(step, optimizer=descent, max_grad_norm=None)


@pytest.mark.parametrize("name", TRAINABLE)
def test_accumulated_batches_are_one_large_batch(name: str, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline(name))
    whole = made_batch(small.family, 6)
    expected_loss = float(small.step.loss(whole).detach())
    expected = gradients(small.step, whole)
    before = {key: weight.detach().clone() for key, weight in small.step.trained.items()}
    outcome = plain_descent(small.step)(0, 1.0, split_batch(whole, 2), 3)
    assert float(outcome.loss) == pytest.approx(expected_loss, rel=1e-5)
    assert outcome.grad_norm is None
    for key, weight in small.step.trained.items():
        torch.testing.assert_close(before[key] - weight.detach(), expected[key], rtol=1e-3, atol=2e-6)


def test_clipping_leaves_short_gradients_alone_and_shortens_long_ones(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"))
    batch = made_batch(small.family, 2)
    by_hand = torch.cat([g.flatten() for g in gradients(small.step, batch).values()]).norm()
    for longest in (float(by_hand) * 2, float(by_hand) / 4):
        before = {key: weight.detach().clone() for key, weight in small.step.trained.items()}
        outcome = dataclasses.replace(plain_descent(small.step), max_grad_norm=longest)(0, 1.0, [batch], 1)
        moved = torch.cat([(before[key] - w.detach()).flatten() for key, w in small.step.trained.items()]).norm()
        assert outcome.grad_norm is not None
        # The norm is reported as it was before clipping.
        torch.testing.assert_close(outcome.grad_norm, by_hand, rtol=1e-4, atol=0)
        assert float(moved) == pytest.approx(min(longest, float(by_hand)), rel=1e-3)
        with torch.no_grad():
            for key, weight in small.step.trained.items():
                weight.copy_(before[key])


def test_weight_of_a_level_scales_its_sample(tiny_pipeline: TinyPipeline) -> None:
    """Two samples, weights 4 and 1: the loss is their weighted mean, not the mean error times a mean weight."""
    small = small_step(tiny_pipeline("flux"), objective={"weighting": "sigma_sqrt"})
    plain = small_step(tiny_pipeline("flux"))
    batch = dataclasses.replace(made_batch(small.family, 2), uniform=torch.tensor([0.5, 1 - 1e-5]))
    with torch.no_grad():
        first, second = (float(plain.step.loss(part)) for part in split_batch(batch, 1))
        assert float(small.step.loss(batch)) == pytest.approx((4 * first + second) / 2, rel=1e-4)


def test_phases_are_marked_in_order(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"))
    seen: list[str] = []

    @contextmanager
    def mark(phase: StepPhase) -> Iterator[None]:
        seen.append(phase)
        yield
        seen.append(f"end of {phase}")

    small.step(0, 1e-3, split_batch(made_batch(small.family, 2), 1), 2, mark)
    once = ["forward", "end of forward", "backward", "end of backward"]
    assert seen == [*once, *once, "optimizer", "end of optimizer"]


def test_a_step_leaves_no_gradients_and_gives_tensors(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"))
    outcome = small.step(0, 1e-3, [made_batch(small.family, 1)], 1)
    assert all(parameter.grad is None for parameter in small.step.trained.values())
    assert not outcome.loss.requires_grad
    assert isinstance(outcome.grad_norm, Tensor)


def test_a_step_without_batches_is_a_mistake_of_ours(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"))
    with pytest.raises(AssertionError, match="at least one batch"):
        small.step(0, 1e-3, [], 1)
