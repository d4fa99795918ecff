"""Sizes as people type them: one parser for keys and options."""

import pytest

from foretune.choices.picture_size import checked_resolution, sides_px, width_and_height


@pytest.mark.parametrize("typed", ["416x240", "416,240", "416, 240", "416×240", " 416 X 240 "])
def test_a_width_and_a_height(typed: str) -> None:
    assert width_and_height(typed) == (416, 240)
    assert checked_resolution(typed) == "416x240"
    assert sides_px(typed, (512, 512), 16, is_video=False) == (240, 416)


@pytest.mark.parametrize("typed", [512, "512", 512.0])
def test_one_side(typed: object) -> None:
    assert checked_resolution(typed) == 512


@pytest.mark.parametrize("typed", ["416,240,3", "416 240", "416,", ",240", "4,240", "416x99999", [416, 240], True])
def test_what_is_no_size(typed: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        checked_resolution(typed)
