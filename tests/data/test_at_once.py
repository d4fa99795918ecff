"""How many images are encoded at once."""

import pytest

from foretune.data.at_once import IN_A_BATCH, images_at_once


@pytest.mark.parametrize(
    ("height_px", "width_px", "num"),
    [(32, 32, 8), (256, 512, 8), (512, 512, 4), (512, 576, 2), (768, 768, 1), (1024, 1024, 1), (2048, 2048, 1)],
)
def test_a_megapixel_at_most_but_one_image_at_least(height_px, width_px, num) -> None:
    assert images_at_once(height_px, width_px) == num
    assert IN_A_BATCH % num == 0
