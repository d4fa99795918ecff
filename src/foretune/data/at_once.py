"""Batch sizes for encoders and decoders. Training and planning both need them, so this module imports no torch."""

IN_A_BATCH = 8
"""Number of jobs, or captions, that are encoded in one batch."""
CAPTIONS_AT_ONCE = 16
"""Number of captions that are encoded in one batch where nothing is trained."""
# An autoencoder's memory grows with the pixels: in fp32 a megapixel takes about 2.5 GiB, so that eight might not fit on
# a device where a training step fits.
_MOST_PIXELS = 1 << 20
TILE_PX = 512
"""Side of the tiles that the autoencoder processes with `levers.vae_tiling`."""
VIDEO_TILE_PX = 256
"""The same for videos; tiles contain all frames."""
TILE_OVERLAP = 0.25
"""Share of a tile's side that overlaps with its neighbour for blending."""


def images_at_once(height_px: int, width_px: int) -> int:
    """Returns a divisor of the batch that depends only on the size, so that an image always has the same arithmetic."""
    fitting = (num for num in (IN_A_BATCH, 4, 2) if num * height_px * width_px <= _MOST_PIXELS)
    return next(fitting, 1)
