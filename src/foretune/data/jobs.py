"""The cache entries that a run needs: cropped images or clips, and captions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foretune.choices.data import Data
from foretune.data.buckets import Bucket
from foretune.data.cache import CacheJob
from foretune.data.grouping import bucket_of
from foretune.data.held_out import held_out_plan
from foretune.data.lookup import Lookup
from foretune.data.maker import cached_plan
from foretune.data.sources.base import SampleInfo, Source
from foretune.data.transforms import CropPlan, cut_sample


class EncodedSamples(Protocol):
    """Samples, and what decides which entries they need. A `BatchMaker` is one."""

    @property
    def source(self) -> Source: ...

    @property
    def buckets(self) -> tuple[Bucket, ...]: ...

    @property
    def choice(self) -> Data: ...

    @property
    def seed(self) -> int: ...

    @property
    def latents(self) -> Lookup | None: ...

    @property
    def text(self) -> Lookup | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRequest:
    """One image to encode, and its crop."""

    index: int
    bucket: Bucket
    plan: CropPlan


def latent_jobs(maker: EncodedSamples, train: Sequence[int], held_out: Sequence[int]) -> list[CacheJob[ImageRequest]]:
    """Returns the images that training on `train` and the held-out loss on `held_out` need, including mirrored ones.

    For a run shorter than an epoch, `train` is `maker.order.samples_until(steps)`. Encode a batch with `load_images`,
    and store one tensor per entry, `foretune.data.lookup.MOMENTS`.
    """
    jobs = [_latent_job(maker, index, plan) for index in train for plan in _train_plans(maker, index)]
    jobs += [_latent_job(maker, index, _held_out_plan(maker, index)) for index in held_out]
    return jobs


def text_jobs(
    maker: EncodedSamples, train: Sequence[int], held_out: Sequence[int], prompts: Sequence[str] = ()
) -> list[CacheJob[str]]:
    """Returns the captions that a run needs, without duplicates; `prompts` are further texts to encode."""
    assert maker.text is not None
    captions = dict.fromkeys(maker.source.info(index).caption for part in (train, held_out) for index in part)
    captions |= dict.fromkeys(prompts)
    if maker.choice.caption_dropout > 0:
        captions[""] = None
    return [CacheJob(key=maker.text.text_key(caption), group="text", payload=caption) for caption in captions]


def load_images(source: Source, requests: Sequence[ImageRequest]) -> Tensor:
    """Loads the samples of requests for one bucket, in [-1, 1]: (B, 3, H, W), or (B, 3, F, H, W) with frames."""
    return torch.stack([cut_sample(source, request.index, request.plan, request.bucket) for request in requests])


def _train_plans(maker: EncodedSamples, index: int) -> Iterator[CropPlan]:
    info, bucket = _sample(maker, index)
    if maker.choice.flip < 1:
        yield cached_plan(info, bucket, maker.choice, maker.seed, flip=False)
    if maker.choice.flip > 0:
        yield cached_plan(info, bucket, maker.choice, maker.seed, flip=True)


def _held_out_plan(maker: EncodedSamples, index: int) -> CropPlan:
    return held_out_plan(*_sample(maker, index))


def _latent_job(maker: EncodedSamples, index: int, plan: CropPlan) -> CacheJob[ImageRequest]:
    assert maker.latents is not None
    info, bucket = _sample(maker, index)
    request = ImageRequest(index=int(index), bucket=bucket, plan=plan)
    return CacheJob(key=maker.latents.latent_key(info, plan, bucket), group=bucket, payload=request)


def _sample(maker: EncodedSamples, index: int) -> tuple[SampleInfo, Bucket]:
    return maker.source.info(index), maker.buckets[bucket_of(maker.source, index, maker.buckets)]
