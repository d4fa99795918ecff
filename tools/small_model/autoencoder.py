"""The small model's autoencoder: 32 px images of shapes as 8 x 8 latents of 8 channels, learnt in ten minutes.

It sees every style, so that a style which the denoiser has never met can be drawn all the same. It learns with 16
channels, which is quick, and then keeps the 8 directions of most variance, which halves what the denoiser has to learn.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from foretune.choices.data import ShapesStyle
from foretune.core.draws import derive_seed
from foretune.data.sources.shapes import Shapes

SIZE_PX = 32
NUM_LATENT_CHANNELS = 8
_NUM_LEARNT_CHANNELS = 16
# Trained autoencoders are nearly certain of their latents: exp(-7 / 2) is a deviation of 0.03.
_LOG_VARIANCE = -7.0
# The autoencoder's trade: how much a latent costs that differs from pure noise, against the error of a pixel. Small,
# as in FLUX: latents are nearly certain, but no farther apart than images need.
_KL_WEIGHT = 1e-4
# How much more a pixel of the shape or beside it counts than one of the background, which is most of the image.
_SHAPE_WEIGHT = 6.0
_BATCH_SIZE = 12
_LEARNING_RATE = 2e-3
_WARMUP_STEPS = 50
_MOST_HELD_OUT = 256
"""Images of each style on which the result is looked at; never more than it was trained on."""


@dataclass(frozen=True, kw_only=True)
class AutoencoderFit:
    """A trained autoencoder and how well it draws images it was not trained on."""

    vae: AutoencoderKL
    psnr_db_by_style: dict[str, float]
    """Of images that were encoded and decoded, against themselves; over held-out images of one style together."""


def build_autoencoder(num_latent_channels: int) -> AutoencoderKL:
    """Three levels, so that a latent stands for 4 x 4 px; about half a million weights."""
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 48),
        layers_per_block=1,
        act_fn="silu",
        latent_channels=num_latent_channels,
        norm_num_groups=8,
        sample_size=SIZE_PX,
        scaling_factor=1.0,
        shift_factor=0.0,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    # Several times quicker on a CPU than images that lie plane by plane.
    return vae.to(memory_format=torch.channels_last)


def train_autoencoder(
    num_steps: int, num_decoder_steps: int, num_images: int, seed: int, on_step: Callable[[int, float], None]
) -> AutoencoderFit:
    """Trains on images of all styles; scaled and shifted, latents then have mean 0 and deviation 1.

    The decoder is trained on by itself once channels have been left out.
    """
    images = _images(num_images, first_index=0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        learnt = build_autoencoder(_NUM_LEARNT_CHANNELS)
    _descend(learnt, list(learnt.parameters()), images, num_steps, seed, on_step)
    vae = with_principal_channels(learnt, images[:2048], NUM_LATENT_CHANNELS)
    _descend(vae, list(vae.decoder.parameters()), images, num_decoder_steps, seed + 1, on_step)
    vae.eval().requires_grad_(requires_grad=False)
    _normalise_latents(vae, images[:2048])
    psnr_db = _psnr_by_style(vae, first_index=num_images, num_images=min(num_images, _MOST_HELD_OUT))
    return AutoencoderFit(vae=vae, psnr_db_by_style=psnr_db)


def _descend(
    vae: AutoencoderKL,
    weights: list[torch.nn.Parameter],
    images: Tensor,
    num_steps: int,
    seed: int,
    on_step: Callable[[int, float], None],
) -> None:
    optimizer = torch.optim.AdamW(weights, lr=_LEARNING_RATE, weight_decay=1e-4, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_at(step, num_steps))
    for step, batch in zip(range(num_steps), _batches(images, seed), strict=False):
        posterior = vae.encode(batch).latent_dist
        noise = torch.Generator().manual_seed(derive_seed(seed, "posterior", step))
        error = vae.decode(posterior.sample(noise)).sample - batch
        misdrawn = (_pixel_weights(batch) * (error.abs() + error.square())).mean()
        loss = misdrawn + _KL_WEIGHT * posterior.kl().mean() / posterior.mean[0].numel()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        on_step(step + 1, float(error.detach().square().mean()))


@torch.no_grad()
def with_principal_channels(vae: AutoencoderKL, images: Tensor, num_channels: int) -> AutoencoderKL:
    """The same autoencoder, whose latents are those of `vae` along their directions of most variance.

    Turning and leaving out are linear, as are the encoder's last layer and the decoder's first, so that they become
    part of them: exactly, but for the border, which the decoder pads with other numbers than before.
    """
    latents = _latents(vae, images).permute(0, 2, 3, 1).flatten(0, 2)
    mean = latents.mean(0)
    turn = torch.linalg.svd(latents - mean, full_matrices=False).Vh[:num_channels]
    weights = vae.state_dict()
    means = weights["encoder.conv_out.weight"][: len(mean)], weights["encoder.conv_out.bias"][: len(mean)]
    turned = torch.einsum("ko,oihw->kihw", turn, means[0])
    weights["encoder.conv_out.weight"] = torch.cat([turned, torch.zeros_like(turned)])
    weights["encoder.conv_out.bias"] = torch.cat([turn @ (means[1] - mean), torch.full((num_channels,), _LOG_VARIANCE)])
    first = weights["decoder.conv_in.weight"]
    weights["decoder.conv_in.weight"] = torch.einsum("oihw,ki->okhw", first, turn)
    weights["decoder.conv_in.bias"] = weights["decoder.conv_in.bias"] + torch.einsum("oihw,i->o", first, mean)
    smaller = build_autoencoder(num_channels)
    smaller.load_state_dict(weights)
    return smaller


def _pixel_weights(images: Tensor) -> Tensor:
    """More where an image differs from its commonest colour, and one pixel around."""
    usual = images.flatten(2).median(dim=2).values[:, :, None, None]
    differs = ((images - usual).abs().sum(1, keepdim=True) > 0.1).float()  # noqa: PLR2004 - above rounding
    weights: Tensor = 1 + _SHAPE_WEIGHT * torch.nn.functional.max_pool2d(differs, 3, stride=1, padding=1)
    return weights / weights.mean()


def _rate_at(step: int, num_steps: int) -> float:
    warm = min(1.0, (step + 1) / _WARMUP_STEPS)
    return warm * 0.5 * (1 + float(np.cos(np.pi * step / num_steps)))


def _images(num_images: int, first_index: int, style: str | None = None) -> Tensor:
    """Images in [-1, 1] from an index on; of all styles in turn unless one is asked for."""
    styles = get_args(ShapesStyle) if style is None else (style,)
    sources = [Shapes(first_index + num_images, SIZE_PX, style=each) for each in styles]
    pixels = np.stack([sources[n % len(styles)].pixels(first_index + n) for n in range(num_images)])
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(
        memory_format=torch.channels_last
    )


def _batches(images: Tensor, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(derive_seed(seed, "order"))
    while True:
        yield images[torch.randint(len(images), (_BATCH_SIZE,), generator=generator)]


def _latents(vae: AutoencoderKL, images: Tensor) -> Tensor:
    return torch.cat([vae.encode(part).latent_dist.mean for part in images.split(256)])


@torch.no_grad()
def _normalise_latents(vae: AutoencoderKL, images: Tensor) -> None:
    """Sets the shift to the mean of all latents and the scale to one over their deviation."""
    latents = _latents(vae, images)
    vae.register_to_config(
        shift_factor=round(float(latents.mean()), 4), scaling_factor=round(1 / float(latents.std()), 4)
    )


@torch.no_grad()
def _psnr_by_style(vae: AutoencoderKL, first_index: int, num_images: int) -> dict[str, float]:
    psnr_db = {}
    for style in get_args(ShapesStyle):
        images = _images(num_images, first_index, style)
        drawn = vae.decode(vae.encode(images).latent_dist.mean).sample.clamp(-1, 1)
        mean_square = float((drawn - images).square().mean())
        psnr_db[style] = round(float(10 * np.log10(4 / mean_square)), 2)
    return psnr_db
