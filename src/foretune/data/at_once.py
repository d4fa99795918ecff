"""How much goes through an encoder or decoder at once. Training and planning both need it, so it knows no torch."""

IN_A_BATCH = 8
"""Jobs that are encoded together, and captions that go through a text encoder at once."""
# An autoencoder's memory grows with the pixels: in fp32 a megapixel takes about 2.5 GiB, so that eight would not fit
# where a training step does.
_MOST_PIXELS = 1 << 20
TILE_PX = 512
"""Side of the tiles in which an image goes through its autoencoder with `levers.vae_tiling`."""
VIDEO_TILE_PX = 256
"""The same for videos; their frames stay together."""
TILE_OVERLAP = 0.25
"""Share of a tile's side that its neighbour has too, so that the two can be blended."""


def images_at_once(height_px: int, width_px: int) -> int:
    """A divisor of the batch that follows from the size alone, so that an image always meets the same arithmetic."""
    fitting = (num for num in (IN_A_BATCH, 4, 2) if num * height_px * width_px <= _MOST_PIXELS)
    return next(fitting, 1)
