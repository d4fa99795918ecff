"""Cutting: the bucket is always covered, the centre is the centre, and no pixel is moved that need not be."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from foretune.data.buckets import Bucket
from foretune.data.transforms import CropPlan, apply, plan_crop
from tests.data.made import MadeSource

_sides = st.integers(1, 3000)
_unit = st.floats(0, 1, exclude_max=True)


@given(
    width=_sides,
    height=_sides,
    wide=st.integers(1, 64),
    tall=st.integers(1, 64),
    draws=st.tuples(_unit, _unit),
)
def test_a_crop_lies_inside_and_the_resize_is_tight(
    width: int, height: int, wide: int, tall: int, draws: tuple[float, float]
):
    bucket = Bucket(wide * 8, tall * 8)
    plan = plan_crop((width, height), bucket, "random", draws)
    assert 0 <= plan.left_px <= plan.resize_px[0] - bucket.width_px
    assert 0 <= plan.top_px <= plan.resize_px[1] - bucket.height_px
    # Covered, and exactly in at least one direction.
    assert bucket.width_px == plan.resize_px[0] or bucket.height_px == plan.resize_px[1]


def test_a_random_crop_reaches_both_ends_and_a_centred_one_the_middle():
    bucket = Bucket(64, 64)
    lefts = {plan_crop((66, 64), bucket, "random", (draw, 0.5)).left_px for draw in (0.0, 0.4, 0.999)}
    assert lefts == {0, 1, 2}
    assert plan_crop((66, 64), bucket, "center", (0.999, 0.999)).left_px == 1


def test_an_image_of_the_bucket_s_size_is_taken_as_it_is():
    pixels = MadeSource([(24, 16)]).pixels(0)
    bucket = Bucket(24, 16)
    tensor = apply(pixels, plan_crop((24, 16), bucket, "center"), bucket)
    assert tensor.shape == (3, 16, 24)
    assert tensor.dtype == torch.float32
    assert np.array_equal(((tensor + 1) * 127.5).round().permute(1, 2, 0).numpy(), pixels)
    mirrored = apply(pixels, plan_crop((24, 16), bucket, "center", flip=True), bucket)
    assert torch.equal(mirrored, tensor.flip(-1))


def test_the_range_is_minus_one_to_one():
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[4:] = 255
    tensor = apply(pixels, plan_crop((8, 8), Bucket(8, 8), "center"), Bucket(8, 8))
    assert (tensor.min().item(), tensor.max().item()) == (-1, 1)


@pytest.mark.parametrize("size_px", [(100, 60), (60, 100), (20, 30), (333, 64)])
def test_resizing_a_part_equals_cutting_the_resized_whole(size_px: tuple[int, int]):
    # Greys that stay clear of black and white: Pillow cuts off overshoot between its two passes.
    pixels = MadeSource([size_px]).pixels(0) // 4 + 96
    bucket = Bucket(48, 40)
    plan = plan_crop(size_px, bucket, "random", (0.7, 0.3))
    whole = Image.fromarray(pixels).resize(plan.resize_px, Image.Resampling.LANCZOS)
    right, bottom = plan.left_px + bucket.width_px, plan.top_px + bucket.height_px
    cut = np.asarray(whole.crop((plan.left_px, plan.top_px, right, bottom))).astype(int)
    ours = ((apply(pixels, plan, bucket) + 1) * 127.5).round().permute(1, 2, 0).numpy().astype(int)
    assert np.abs(cut - ours).max() <= 1


def test_a_plan_says_everything():
    pixels = MadeSource([(50, 40)]).pixels(0)
    plan = CropPlan(resize_px=(50, 40), left_px=7, top_px=3, flip=False)
    tensor = apply(pixels, plan, Bucket(16, 8))
    assert np.array_equal(((tensor + 1) * 127.5).round().permute(1, 2, 0).numpy(), pixels[3:11, 7:23])
