"""Tiled autoencoders, which need less memory for large images."""

from typing import Any

from foretune.core.errors import UserError
from foretune.data.at_once import TILE_PX


def tile_autoencoder(vae: Any) -> None:
    """Enables tiling with tiles of TILE_PX: the default tiles of diffusers are as large as a model's training images.

    An autoencoder that has its own kind of latent tile size only (those of videos) uses diffusers' default tiles.
    """
    if not hasattr(vae, "enable_tiling"):
        raise UserError(
            f"levers.vae_tiling: {type(vae).__name__} cannot work in tiles. Run without it: levers.vae_tiling=false"
        )
    vae.enable_tiling()
    if hasattr(vae, "tile_sample_min_size"):
        factor = 2 ** (len(vae.config.block_out_channels) - 1)
        vae.tile_sample_min_size = TILE_PX
        vae.tile_latent_min_size = TILE_PX // factor
