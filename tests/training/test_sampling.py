"""Same prompt, same seed, same image, whatever is sampled beside it and wherever captions are encoded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from foretune.catalog import TRAINABLE
from foretune.data.buckets import Bucket
from foretune.models.locating import open_family
from foretune.training.sampling import SampleRequest, grid, sample, save_sample, to_image
from tests.models.made_inputs import gradient_image, small_size

TinyPipeline = Callable[..., Path]

WITH_TEXT = [(name, variant) for name, facts in TRAINABLE.items() if facts.has_text for variant in facts.tiny_variants]
REQUEST = SampleRequest(
    prompts=("a small red circle on blue", "a large green star on white"),
    seed=4,
    num_inference_steps=2,
    size=Bucket(32, 32),
    num_text_tokens=16,
)


@pytest.mark.parametrize("name", TRAINABLE)
def test_an_image_depends_on_seed_place_and_prompt_alone(name: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    request = replace(REQUEST, size=small_size(family))
    both = sample(family, pipeline, request)
    torch.rand(5)
    alone = sample(family, pipeline, replace(request, prompts=request.prompts[:1]))
    assert np.array_equal(both[0], alone[0])
    assert not np.array_equal(both[0], both[1])
    other = sample(family, pipeline, replace(request, seed=5))
    assert not np.array_equal(both[0], other[0])
    for image in both:
        frames = () if request.size.num_frames is None else (request.size.num_frames,)
        assert image.shape == (*frames, 32, 32, 3)
        assert image.dtype == np.float32
        assert 0 <= image.min() < image.max() <= 1


@pytest.mark.takes_turns
@pytest.mark.parametrize(("name", "variant"), WITH_TEXT)
@pytest.mark.parametrize("guidance", [None, 1.0, 4.5])
def test_encoded_captions_give_the_same_image_as_prompts(
    name: str, variant: str, guidance: float | None, tiny_pipeline: TinyPipeline
) -> None:
    """With guidance too, where the empty caption counts; and with a first frame, which is encoded beforehand too."""
    folder = tiny_pipeline(name, variant)
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    size = small_size(family)
    frames = [gradient_image(size), gradient_image(size).rotate(90)] if family.takes_first_frame else []
    request = replace(REQUEST, guidance_scale=guidance, size=size, first_frames=tuple(frames))
    expected = sample(family, pipeline, request)
    with torch.no_grad():
        encoded = [family.encode_text(pipeline, [prompt], 16) for prompt in request.prompts]
        unconditional = family.encode_text(pipeline, [""], 16)
        for number, frame in enumerate(frames):
            pixels = torch.from_numpy(np.asarray(frame).copy()).permute(2, 0, 1) / 127.5 - 1
            encoded[number] |= family.embed_frames(pipeline, pixels[None])
    left_out = dict.fromkeys((*family.text_parts, *family.image_parts))
    without_text: Any = family.load_pipeline(folder, torch.float32, **left_out)
    found = sample(family, without_text, request, encoded, unconditional)
    assert not frames or not np.array_equal(found[0], found[1])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(("dtype", "expected"), [("float16", "float32"), ("bfloat16", "bfloat16")])
def test_pictures_are_not_decoded_in_fp16(dtype: str, expected: str, tiny_pipeline: TinyPipeline) -> None:
    """In which the published SDXL's autoencoder overflows."""
    folder = tiny_pipeline("sdxl")
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    seen: list[torch.dtype] = []
    for module in (pipeline.unet.conv_in, pipeline.vae.decoder.conv_in):
        module.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=getattr(torch, dtype)):
        sample(family, pipeline, replace(REQUEST, prompts=REQUEST.prompts[:1]))
    assert seen[0] == getattr(torch, dtype)
    assert seen[-1] == getattr(torch, expected)
    assert "decode" not in vars(pipeline.vae)


def test_guidance_changes_the_image(tiny_pipeline: TinyPipeline) -> None:
    for name in dict.fromkeys(name for name, _ in WITH_TEXT):
        folder = tiny_pipeline(name)
        family = open_family(folder)
        pipeline = family.load_pipeline(folder, torch.float32)
        request = replace(REQUEST, size=small_size(family))
        images = [sample(family, pipeline, replace(request, guidance_scale=scale))[0] for scale in (2.0, 9.0)]
        assert not np.array_equal(images[0], images[1])


def test_floats_become_bytes() -> None:
    pixels = np.array([[[-0.5, 0.0, 0.5], [1.0, 1.5, 0.002]]], dtype=np.float32)
    assert np.asarray(to_image(pixels)).tolist() == [[[0, 0, 128], [255, 255, 1]]]


def test_a_clip_is_kept_as_a_strip_and_as_an_animation(tmp_path: Path) -> None:
    shades = np.linspace(0, 1, 11, dtype=np.float32)
    clip = np.broadcast_to(shades[:, None, None, None], (11, 6, 5, 3))
    save_sample(clip, tmp_path / "clip.png", fps=24)
    strip = Image.open(tmp_path / "clip.png")
    assert strip.size == (8 * 5 + 7 * 4, 6)
    shown = np.asarray(strip)[0, ::9, 0].tolist()
    assert shown == [round(255 * shades[index]) for index in (0, 1, 3, 4, 6, 7, 9, 10)]
    animation: Any = Image.open(tmp_path / "clip.webp")
    assert (animation.n_frames, animation.size) == (11, (5, 6))
    animation.load()
    assert animation.info["duration"] == 42, "milliseconds"
    save_sample(clip[0], tmp_path / "image.png", fps=24)
    save_sample(clip[:1], tmp_path / "frame.png", fps=24)
    assert {path.name for path in tmp_path.iterdir()} == {"clip.png", "clip.webp", "image.png", "frame.png"}


def test_pictures_stand_in_rows_with_white_between() -> None:
    red, blue = (Image.new("RGB", (6, 5), colour) for colour in ("red", "blue"))
    sheet = grid([[red, blue], [blue]], gap_px=2)
    assert sheet.size == (14, 12)
    found = [sheet.getpixel(place) for place in ((0, 0), (6, 0), (8, 0), (0, 7), (8, 7), (0, 6))]
    white, r, b = (255, 255, 255), (255, 0, 0), (0, 0, 255)
    assert found == [r, white, b, b, white, white]
