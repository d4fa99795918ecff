"""Autoencoders in tiles: less memory for large pictures, and nearly the same pictures."""

import pytest
import torch
from diffusers import AutoencoderKL

from foretune.core.errors import UserError
from foretune.data.at_once import TILE_PX
from foretune.models.tiling import tile_autoencoder

SCALE = 8
"""Pixels of a picture for each of its latents, along a side."""


def small_autoencoder() -> AutoencoderKL:
    """Four levels, as published ones have: attention in the middle sees an eighth of each side."""
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=1024,
    ).eval()


@torch.no_grad()
def test_a_picture_larger_than_a_tile_is_decoded_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers' own tiles are as large as the pictures a model was trained on, which saves nothing for those."""
    vae = small_autoencoder()
    latents = torch.randn(1, 4, 640 // SCALE, 640 // SCALE)
    whole = vae.decode(latents).sample
    sides: list[int] = []
    decoder = vae.decoder.forward

    def watched(z: torch.Tensor, *rest: object) -> torch.Tensor:
        sides.append(z.shape[-1] * SCALE)
        decoded: torch.Tensor = decoder(z, *rest)
        return decoded

    monkeypatch.setattr(vae.decoder, "forward", watched)
    tile_autoencoder(vae)
    tiled = vae.decode(latents).sample
    assert tiled.shape == whole.shape
    assert len(sides) > 1
    assert max(sides) <= TILE_PX
    # Tiles are normalised one by one, so that they are near to the whole and not equal to it.
    assert 0 < float((tiled - whole).abs().mean()) < float(whole.abs().mean())


@torch.no_grad()
def test_a_picture_that_is_no_larger_than_a_tile_is_the_same() -> None:
    vae = small_autoencoder()
    latents = torch.randn(1, 4, TILE_PX // SCALE, TILE_PX // SCALE)
    whole = vae.decode(latents).sample
    tile_autoencoder(vae)
    assert torch.equal(vae.decode(latents).sample, whole)


def test_an_autoencoder_without_tiles_is_refused() -> None:
    with pytest.raises(UserError, match=r"levers\.vae_tiling=false"):
        tile_autoencoder(torch.nn.Identity())
