"""How many samples go through an encoder at once while the caches are filled. A plan needs it, and knows no torch."""

IN_A_BATCH = 8
"""Jobs that are encoded together, and captions that go through a text encoder at once."""
# An autoencoder's memory grows with the pixels: in fp32 a megapixel takes about 2.5 GiB, so that eight would not fit
# where a training step does.
_MOST_PIXELS = 1 << 20


def images_at_once(height_px: int, width_px: int) -> int:
    """A divisor of the batch that follows from the size alone, so that an image always meets the same arithmetic."""
    fitting = (num for num in (IN_A_BATCH, 4, 2) if num * height_px * width_px <= _MOST_PIXELS)
    return next(fitting, 1)
