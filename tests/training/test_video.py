"""Clips from files to trained models: lengths, buckets, first frames, and the settings of a public benchmark."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from foretune.core.errors import Refused
from foretune.data.buckets import Bucket
from foretune.models.family import GUIDE
from foretune.models.locating import open_family
from foretune.training.sizes import sampling_size
from foretune.training.train import train
from tests.data.made_videos import numbered, save_video
from tests.training.short_runs import PROMPT, Recording, losses_of, short_asked, short_prepared, short_run

TinyPipeline = Callable[..., Path]


def with_clips(folder: Path) -> dict[str, Any]:
    """A folder of videos of 12 and of 6 frames, and of one clip in single frames."""
    folder.mkdir()
    for number in range(4):
        num_frames = 6 if number == 3 else 12
        save_video(folder / f"{number}.mp4", [numbered(4 * number + frame, (64, 48)) for frame in range(num_frames)])
        (folder / f"{number}.txt").write_text(f"clip {number}")
    frames = folder / "frames"
    frames.mkdir()
    for frame in range(9):
        Image.new("RGB", (48, 64), (10 * frame, 80, 200)).save(frames / f"frame{frame}.png")
    (folder / "frames.txt").write_text("single frames")
    return {"kind": "clips", "path": str(folder), "resolution": "48x32", "num_frames": 9, "max_text_tokens": 16}


@pytest.mark.parametrize(
    ("family", "asked", "legal", "nearest"),
    [
        ("wan", 8, "5 or 9", 9),
        ("wan", 6, "5 or 9", 5),
        ("hunyuan_video", 80, "77 or 81", 81),
        ("mochi", 9, "7 or 13", 7),
        ("ltx_video", 6, "5 or 7", 5),
    ],
)
def test_a_length_the_model_cannot_take(
    family: str, asked: int, legal: str, nearest: int, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    said = rf"does not take {asked} frames, but {legal}\. Nearest: data\.num_frames={nearest}$"
    with pytest.raises(Refused, match=said):
        short_prepared(tiny_pipeline(family), tmp_path, data={"num_frames": asked})


def test_a_square_clip_stays_square(tiny_pipeline: TinyPipeline) -> None:
    """One number is the shorter side of a clip, so that a square has two."""
    family = open_family(tiny_pipeline("wan"))
    assert sampling_size(family, None, trained=Bucket(32, 32, 5)) == Bucket(32, 32, 5)
    assert sampling_size(family, "64x64", 9) == Bucket(64, 64, 9)
    assert sampling_size(family, 64, 9) == Bucket(112, 64, 9)
    with pytest.raises(Refused, match=r"The size 40x40 px is not a multiple of 16 px.* Nearest: 32x32$"):
        sampling_size(family, "40x40", 9)
    with pytest.raises(Refused, match=r"must be a whole number of pixels such as 512"):
        sampling_size(family, "wide", 9)


@pytest.mark.parametrize(
    ("name", "variant"), [("wan", "2.1-t2v"), ("hunyuan_video", "1.0"), ("mochi", "1"), ("ltx_video", "0.9")]
)
def test_a_checkpoint_of_the_first_releases_has_the_same_sizes(
    name: str, variant: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """Whose autoencoder's file leaves out what became a setting later."""
    whole = tiny_pipeline(name, variant)
    folder = tmp_path / "first"
    shutil.copytree(whole, folder)
    path = folder / "vae" / "config.json"
    later = ("scale_factor", "compression_ratio", "expansions")
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in stored.items() if not any(part in key for part in later)}))
    assert len(json.loads(path.read_text())) < len(stored)
    assert open_family(folder).latent_shape(64, 48, 13) == open_family(whole).latent_shape(64, 48, 13)


def test_two_denoisers_and_two_frames_are_refused_before_anything_is_loaded(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_pipeline("wan", "2.1-i2v"), folder)
    index, config = folder / "model_index.json", folder / "transformer" / "config.json"
    stored = json.loads(config.read_text())
    config.write_text(json.dumps({**stored, "pos_embed_seq_len": 514}))
    with pytest.raises(Refused, match="a first and a last frame, which cannot be trained yet"):
        open_family(folder)
    config.write_text(json.dumps(stored))
    open_family(folder)
    second = {"transformer_2": ["diffusers", "WanTransformer3DModel"]}
    index.write_text(json.dumps({**json.loads(index.read_text()), **second}))
    with pytest.raises(Refused, match="has two denoisers, one for high and one for low noise"):
        open_family(folder)


def test_an_autoencoder_that_adds_noise_is_refused(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """That of LTX-Video 0.9.1: diffusers draws it from the process's generator, so no sample could be repeated."""
    folder = tmp_path / "noisy"
    shutil.copytree(tiny_pipeline("ltx_video"), folder)
    path = folder / "vae" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder_inject_noise": [True, False, False]}))
    with pytest.raises(Refused, match=r"adds noise of its own when it decodes .*Nearest: Lightricks/LTX-Video"):
        open_family(folder)


def test_captions_of_another_length_are_refused_where_diffusers_would_mix_them_up(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    with pytest.raises(Refused, match=r"captions of 512 tokens only\. Nearest: data\.max_text_tokens=512"):
        short_prepared(tiny_pipeline("wan", "2.1-i2v"), tmp_path, data={"max_text_tokens": 77})
    # Text-to-video takes any length.
    short_prepared(tiny_pipeline("wan"), tmp_path, data={"max_text_tokens": 77})


def test_clips_of_several_lengths_and_shapes_are_trained_in_buckets(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    data = {**with_clips(tmp_path / "clips"), "cache_dir": str(tmp_path / "cache"), "held_out": 0.0}
    buckets = {**data, "max_buckets": 4, "bucket_step_px": 16}
    trained = short_run(tiny_pipeline("wan"), tmp_path, data=buckets, train={"steps": 6, "batch_size": 1})
    _, _, effective = trained.run.read_experiment()
    assert Bucket.from_facts(effective) == Bucket(48, 32, 9)
    assert sorted(effective["buckets_px"]) == [[32, 48, 9], [48, 32, 5], [48, 32, 9]]
    assert trained.record.outcome.status == "finished"
    with pytest.raises(Exception, match=r"1 of 5 samples have fewer than 9 frames: .*3\.mp4 \(6\)"):
        short_run(tiny_pipeline("wan"), tmp_path, data=data)


def test_images_train_a_video_model(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = short_run(
        tiny_pipeline("hunyuan_video"), tmp_path, data={"num_frames": 1}, validate={"prompts": [PROMPT]}
    )
    assert trained.record.outcome.status == "finished"
    assert {path.suffix for path in (trained.run.path / "samples").iterdir()} == {".png"}


def test_a_first_frame_conditions_training_and_samples(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("wan", "2.1-i2v")
    sections: dict[str, Any] = {"validate": {"prompts": [PROMPT, PROMPT], "num_held_out": 2}}
    prepared = short_prepared(folder, tmp_path, **sections)
    batch = prepared.batch_maker[0]
    assert batch.conditioning is not None
    assert batch.moments is not None
    known = batch.conditioning[GUIDE][:, :4]
    assert known[:, :, 0].min() == 1
    assert known[:, :, 1:].abs().max() == 0
    # What is known of the first frame is the mean of its latents, where later frames are empty.
    family = prepared.family
    mean = batch.moments.chunk(2, dim=1)[0]
    torch.testing.assert_close(batch.conditioning[GUIDE][:, 4:, 0], family._scaled(mean)[:, :, 0])
    # Each prompt continues the first frame of another held-out clip.
    assert len(prepared.first_frames) == 2
    assert not np.array_equal(np.asarray(prepared.first_frames[0]), np.asarray(prepared.first_frames[1]))
    without_cache = short_run(folder, tmp_path / "live", levers={"cache_latents": False}, **sections)
    cached = short_run(folder, tmp_path, **sections)
    assert losses_of(cached.run) == pytest.approx(losses_of(without_cache.run), rel=1e-5)
    shown = [np.asarray(Image.open(cached.run.path / "samples" / f"step-000000003-{i}.png")) for i in (0, 1)]
    assert not np.array_equal(shown[0], shown[1])


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("family", "variant", "resolution"),
    [
        ("flux", "dev", "416x240"),
        ("sdxl", "1.0", "416x256"),
        ("mochi", "1", "416x240"),
        ("hunyuan_video", "1.0", "416x240"),
        ("wan", "2.1-i2v", "416x240"),
    ],
)
def test_models_and_settings_of_a_public_benchmark(
    family: str, variant: str, resolution: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """Precision, batch, iterations, learning-rate schedule and warm-up, half of the blocks checkpointed, 416x240.

    SDXL's UNet halves the latents twice, so that its sides are multiples of 32 px.
    """
    folder = tiny_pipeline(family, variant)
    asked = short_asked(
        folder,
        tmp_path,
        data={"resolution": resolution, "num_samples": 4, "held_out": 0.0},
        train={"steps": 4, "batch_size": 2, "precision": "bf16"},
        optimizer={"lr": 1e-4, "schedule": "cosine", "warmup_steps": 2},
        levers={"gradient_checkpointing": 0.5},
        save={"every": 2},
    )
    observer = Recording()
    trained = train(asked, tmp_path / "runs", observer)
    assert trained.record.outcome.status == "finished"
    width_px, height_px = map(int, resolution.split("x"))
    _, _, effective = trained.run.read_experiment()
    assert effective["size_px"] == [width_px, height_px]
    assert open_family(folder).latent_shape(height_px, width_px)[-1] == width_px // 8
    assert trained.num_changed_tensors == trained.num_trained_tensors > 0
