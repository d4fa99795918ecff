"""Autoencoders that work in tiles, so that large pictures need less memory."""

from typing import Any

from foretune.core.errors import UserError
from foretune.data.at_once import TILE_PX


def tile_autoencoder(vae: Any) -> None:
    """Switches tiling on, with tiles of TILE_PX: diffusers' own are as large as the pictures a model was trained on.

    An autoencoder that has only a latent tile size of its own kind (those of videos) keeps diffusers' tiles.
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
