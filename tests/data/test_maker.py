"""Batches are the same on any number of processes, and every draw follows from seed, step and slot."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.data.batch import Batch
from foretune.data.buckets import Bucket
from foretune.data.cache import CacheJob, TensorCache, fill
from foretune.data.jobs import ImageRequest, latent_jobs, load_images, text_jobs
from foretune.data.lookup import MOMENTS, Lookup
from foretune.data.maker import BatchMaker
from foretune.data.sources.shapes import Shapes
from tests.data.made import MadeSource, encode_moments, make_maker

_WIDE = (Bucket(24, 16), Bucket(16, 16))
_SIZES_PX = [(48, 32), (30, 30), (60, 36), (32, 33)] * 3


def _global(step: int, worlds: dict[str, Any], **given: Any) -> dict[str, Any]:
    """One step over all processes and forward passes, put together in the order of the slots."""
    batches: list[Batch] = []
    for micro in range(worlds["gradient_accumulation"]):
        for rank in range(worlds["world_size"]):
            maker = make_maker(MadeSource([(20, 30), (40, 24)] * 30), rank=rank, **worlds, **given)
            batches.append(maker[step * worlds["gradient_accumulation"] + micro])
    assert all(batch.step == step for batch in batches)
    return {
        "indices": [index for batch in batches for index in batch.indices],
        "captions": [caption for batch in batches for caption in batch.captions],
        **{
            name: torch.cat([getattr(batch, name) for batch in batches])
            for name in ("noise", "posterior_noise", "uniform", "images")
        },
    }


@pytest.mark.parametrize(
    ("world_size", "gradient_accumulation"),
    [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (1, 12), (2, 3), (3, 2), (4, 3)],
)
def test_a_global_batch_of_12_is_the_same_on_any_number_of_processes(world_size: int, gradient_accumulation: int):
    given: dict[str, Any] = {"crop": "random", "flip": 0.5, "caption_dropout": 0.3, "has_autoencoder": True}
    worlds = {
        "world_size": world_size,
        "gradient_accumulation": gradient_accumulation,
        "batch_size": 12 // world_size // gradient_accumulation,
    }
    alone = {"world_size": 1, "gradient_accumulation": 1, "batch_size": 12}
    for epoch in (0, 3):
        seen: list[int] = []
        for step in range(epoch * 5, epoch * 5 + 5):
            here, there = _global(step, worlds, **given), _global(step, alone, **given)
            assert here["indices"] == there["indices"]
            assert here["captions"] == there["captions"]
            for name in ("noise", "posterior_noise", "uniform", "images"):
                assert torch.equal(here[name], there[name]), name
            seen += here["indices"]
        assert sorted(seen) == list(range(60))


def test_a_batch_is_what_it_says():
    batch = make_maker(batch_size=3)[4]
    assert (batch.step, batch.micro, len(batch)) == (4, 0, 3)
    assert batch.images is not None
    assert batch.images.shape == (3, 3, 16, 16)
    assert batch.noise.shape == (3, 4, 2, 2)
    assert batch.noise.dtype == torch.float32
    assert batch.uniform.dtype == torch.float64
    assert batch.moments is None
    assert batch.posterior_noise is None
    assert batch.conditioning is None
    source = Shapes(60, 16)
    assert batch.captions == tuple(source.info(index).caption for index in batch.indices)
    shown = ((batch.images[1] + 1) * 127.5).round().permute(1, 2, 0).to(torch.uint8).numpy()
    assert (shown == source.pixels(batch.indices[1])).all()


def test_no_two_draws_are_equal():
    maker = make_maker(batch_size=6, has_autoencoder=True)
    other_seed = make_maker(batch_size=6, seed=6, has_autoencoder=True)
    batches = [*(maker[micro] for micro in range(10)), other_seed[0]]
    noises = [noise for batch in batches for noise in batch.noise]
    noises += [noise for batch in batches if batch.posterior_noise is not None for noise in batch.posterior_noise]
    assert len({tuple(noise.flatten().tolist()) for noise in noises}) == 11 * 6 * 2
    assert len({draw for batch in batches for draw in batch.uniform.tolist()}) == 11 * 6


def test_draws_have_the_shape_they_should():
    batches = [make_maker(batch_size=10)[micro] for micro in range(60)]
    noise = torch.cat([batch.noise for batch in batches]).flatten()
    assert noise.mean().abs() < 6 / noise.numel() ** 0.5
    assert (noise.std() - 1).abs() < 6 / (2 * noise.numel()) ** 0.5
    uniform = torch.cat([batch.uniform for batch in batches])
    assert 0 <= uniform.min() < 0.02
    assert 0.98 < uniform.max() < 1
    assert (uniform.mean() - 0.5).abs() < 6 * (1 / 12 / 600) ** 0.5


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_captions_are_dropped_as_often_as_asked(share: float):
    maker = make_maker(batch_size=10, caption_dropout=share)
    dropped = sum(caption == "" for micro in range(40) for caption in maker[micro].captions)
    # 400 draws: six standard deviations are 52 at a quarter.
    assert abs(dropped - 400 * share) <= (52 if 0 < share < 1 else 0)


def test_flips_mirror_and_random_crops_move():
    source = MadeSource([(20, 16)])
    plain, flipped = (make_maker(source, batch_size=1, flip=flip)[0].images for flip in (0.0, 1.0))
    assert plain is not None
    assert flipped is not None
    assert torch.equal(flipped, plain.flip(-1))
    moving = make_maker(source, batch_size=1, crop="random")
    crops = {tuple(images.flatten().tolist()) for step in range(40) if (images := moving[step].images) is not None}
    assert len(crops) == 5


def test_framing_says_where_an_image_was_cut():
    """Cut from the whole image there, mirrored where the sample is, each sample is what the batch holds."""
    source = MadeSource([(30, 16), (16, 25), (16, 16)])  # resized by nothing, so that every pixel can be compared
    maker = make_maker(source, batch_size=3, crop="random", flip=0.5)
    seen = set()
    for micro in range(20):
        batch = maker[micro]
        assert batch.framing is not None
        assert batch.images is not None
        for index, framing, image in zip(batch.indices, batch.framing.int().tolist(), batch.images, strict=True):
            height, width, top, left, cut_height, cut_width = framing
            whole = source.pixels(index)
            assert ((height, width), (cut_height, cut_width)) == (whole.shape[:2], (16, 16))
            shown = ((image + 1) * 127.5).round().permute(1, 2, 0).to(torch.uint8).numpy()
            mirrored = [
                bool((view[top : top + 16, left : left + 16] == shown).all()) for view in (whole, whole[:, ::-1])
            ]
            assert any(mirrored)
            seen.add((index, mirrored.index(True), top, left))
    assert len(seen) > 20


def test_a_batch_has_the_shape_of_its_bucket():
    maker = make_maker(MadeSource(_SIZES_PX), buckets=_WIDE, batch_size=3)
    shapes = {tuple(batch.images.shape) for micro in range(4) if (batch := maker[micro]).images is not None}
    assert shapes == {(3, 3, 16, 24), (3, 3, 16, 16)}
    noises = {tuple(maker[micro].noise.shape) for micro in range(4)}
    assert noises == {(3, 4, 2, 3), (3, 4, 2, 2)}


def _cached(tmp_path: Path, **given: Any) -> tuple[BatchMaker, list[int], list[int]]:
    """A maker whose caches are filled as a run fills them, with the samples it trains on and holds out."""
    cache = TensorCache(tmp_path / "cache")
    maker = make_maker(
        MadeSource(_SIZES_PX),
        buckets=_WIDE,
        latents=Lookup(cache, "vae"),
        text=Lookup(cache, "encoder"),
        **given,
    )
    train, held_out = list(range(12)), [1, 2]

    def encode_images(jobs: Any) -> list[dict[str, torch.Tensor]]:
        moments = encode_moments(load_images(maker.source, [job.payload for job in jobs]))
        return [{MOMENTS: one} for one in moments]

    def encode_text(jobs: Any) -> list[dict[str, torch.Tensor]]:
        return [{"tokens": torch.full((4,), float(len(job.payload))), "any": torch.ones(2, 3)} for job in jobs]

    fill(cache, latent_jobs(maker, train, held_out), encode_images, 2)
    fill(cache, text_jobs(maker, train, held_out), encode_text, 2)
    return maker, train, held_out


@pytest.mark.parametrize("crop", ["center", "random"])
@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
def test_cached_latents_are_those_of_the_images_as_cut(tmp_path: Path, crop: str, flip: float):
    maker, _, _ = _cached(tmp_path, crop=crop, flip=flip, caption_dropout=0.4)
    seen: dict[int, set[tuple[float, ...]]] = {}
    for micro in range(60):
        batch = maker[micro]
        assert batch.images is None
        assert batch.moments is not None
        assert batch.posterior_noise is not None
        assert batch.conditioning is not None
        assert batch.moments.shape[1:] == (8, *batch.noise.shape[-2:])
        assert batch.conditioning["any"].shape == (2, 2, 3)
        assert batch.conditioning["tokens"][:, 0].tolist() == [len(caption) for caption in batch.captions]
        for index, moments in zip(batch.indices, batch.moments, strict=True):
            seen.setdefault(index, set()).add(tuple(moments.flatten().tolist()))
    assert len(seen) == 12
    assert {len(variants) for variants in seen.values()} == {2 if flip == 0.5 else 1}
    if crop == "center":
        uncached = make_maker(MadeSource(_SIZES_PX), buckets=_WIDE, flip=flip)
        for micro in range(6):
            images, moments = uncached[micro].images, maker[micro].moments
            assert images is not None
            assert moments is not None
            assert torch.equal(encode_moments(images), moments)


def test_jobs_name_exactly_what_is_needed(tmp_path: Path):
    def requests(**given: Any) -> list[ImageRequest]:
        maker = make_maker(MadeSource(_SIZES_PX), latents=Lookup(TensorCache(tmp_path), "vae"), **given)
        return [job.payload for job in latent_jobs(maker, [0, 1, 2], [5])]

    assert [(request.index, request.plan.flip) for request in requests()] == [(n, False) for n in (0, 1, 2, 5)]
    assert sorted((request.index, request.plan.flip) for request in requests(flip=0.1)) == sorted(
        [(n, flip) for n in (0, 1, 2) for flip in (False, True)] + [(5, False)]
    )
    assert [request.plan.flip for request in requests(flip=1.0)] == [True, True, True, False]

    def captions(**given: Any) -> list[str]:
        maker = make_maker(MadeSource(_SIZES_PX), text=Lookup(TensorCache(tmp_path), "encoder"), **given)
        return [job.payload for job in text_jobs(maker, [0, 1], [5], prompts=["a harbour", "caption 1"])]

    assert captions() == ["caption 0", "caption 1", "caption 5", "a harbour"]
    assert captions(caption_dropout=0.1)[-1] == ""


def test_a_cut_is_part_of_the_key_and_so_is_the_encoder(tmp_path: Path):
    def keys(encoder: str = "vae", **given: Any) -> list[str]:
        lookup = Lookup(TensorCache(tmp_path), encoder)
        maker = make_maker(MadeSource([(40, 30)] * 8), latents=lookup, **given)
        jobs: list[CacheJob[ImageRequest]] = latent_jobs(maker, range(8), [])
        return [job.key for job in jobs]

    assert len(set(keys())) == 8
    assert keys() == keys(seed=9)
    assert not set(keys()) & set(keys("another vae"))
    assert not set(keys()) & set(keys(buckets=(Bucket(8, 8),)))
    assert keys(crop="random") != keys(crop="random", seed=9)


def test_a_batch_moves_as_a_whole(tmp_path: Path):
    maker, _, _ = _cached(tmp_path)
    batch = maker[0].to("meta")
    for tensor in (
        batch.noise,
        batch.moments,
        batch.posterior_noise,
        batch.uniform,
        *(batch.conditioning or {}).values(),
    ):
        assert tensor is not None
        assert tensor.device.type == "meta"
    assert batch.indices == maker[0].indices


def test_a_batch_size_that_does_not_fit_the_order_is_our_mistake():
    with pytest.raises(AssertionError):
        replace(make_maker(batch_size=2), batch_size=3)
