"""Loads one model, collects everything that the metrics need, and frees it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from foretune.accelerator.memory import free_memory
from foretune.core.draws import derive_seed
from foretune.core.observer import Observer
from foretune.data.batch import Batch, normal
from foretune.data.held_out import HELD_OUT
from foretune.models.family import Conditioning
from foretune.models.trainable import TrainableFamily
from foretune.quality.batched import SampledBatches, by_prompt, images_at_once, stacked
from foretune.quality.denoising import Denoising
from foretune.quality.evidence import SampledEvidence
from foretune.quality.held_out import NUM_BANDS, EvaluationData, in_pieces
from foretune.quality.measurement import Need
from foretune.quality.parallel_sampling import SamplingTask, sample_loaded, sample_task
from foretune.quality.request import LEVELS
from foretune.quality.setting import Setting
from foretune.quality.subjects import EvaluatedModel
from foretune.step.sample_loss import sample_losses
from foretune.training.sampling import Pixels

Encoded = Mapping[str, Conditioning]


def encode_texts(subject: EvaluatedModel, setting: Setting, observer: Observer) -> Encoded:
    """Encodes every prompt and caption on the device; the text encoders are freed before a denoiser is loaded."""
    captions = () if setting.data is None else setting.data.captions
    texts = (*setting.sampling.prompts, *captions)
    observer.preparing("encoding captions", 0, len(texts))
    return setting.setup.encode(subject.family, subject.folder, texts, setting.sampling.num_text_tokens)


def gather(
    subject: EvaluatedModel,
    setting: Setting,
    encoded: Encoded,
    needs: frozenset[Need],
    num_steps: int,
    observer: Observer,
    column: str,
) -> SampledEvidence:
    """Collects the evidence that the metrics need from one model."""
    task = SamplingTask(
        model=subject.files,
        request=replace(setting.sampling, num_inference_steps=num_steps),
        num_seeds=setting.num_seeds,
        batch_size=setting.batch_size,
        measures_speed=True,
    )
    samples = None
    if "samples" in needs and task.num_processes(setting.request.devices) > 1:
        # Before this process loads the model: the first of the others has the same device.
        samples = sample_task(task, setting.setup, encoded, setting.request.devices, observer, f"sampling, {column}")
    session = _Session(subject, setting, encoded, num_steps)
    try:
        if "samples" in needs and samples is None:
            samples = session.samples(task, observer, column)
        found = session.evidence(needs, observer, column)
    finally:
        session.close()
    if samples is None:
        return found
    return replace(found, samples=by_prompt(samples.images, task.num_seeds), images_per_s=samples.images_per_s)


class _Session:
    """A loaded model during an evaluation."""

    def __init__(self, subject: EvaluatedModel, setting: Setting, encoded: Encoded, num_steps: int) -> None:
        self._setting, self._encoded, self._num_steps = setting, encoded, num_steps
        self._family: TrainableFamily = subject.family
        self._denoiser: nn.Module = subject.files.load_denoiser(setting.setup)
        self._pipeline: Any = setting.setup.pipeline(subject.family, subject.folder, self._denoiser)
        subject.files.attach_adapter(setting.setup, self._pipeline)
        self._vae: Any = self._pipeline.vae if self._family.has_latents else None

    def close(self) -> None:
        self._pipeline = self._vae = None
        del self._denoiser
        free_memory()

    def samples(self, task: SamplingTask, observer: Observer, column: str) -> SampledBatches:
        what = f"sampling, {column}"
        return sample_loaded(task, self._setting.setup, self._pipeline, self._encoded, task.batches, observer, what)

    @torch.no_grad()
    def evidence(self, needs: frozenset[Need], observer: Observer, column: str) -> SampledEvidence:
        found = SampledEvidence()
        setup = self._setting.setup
        with setup.policy.products():
            data = self._setting.data
            if data is not None and data.held_out:
                if "losses" in needs:
                    found = replace(found, losses=self._losses(data, observer, column))
                if "denoised" in needs:
                    found = replace(found, denoised=self._denoised(data, observer, column))
        return found

    def _losses(self, data: EvaluationData, observer: Observer, column: str) -> tuple[tuple[float, ...], ...]:
        at_once = self._at_once()
        batches = data.batches(at_once if at_once < NUM_BANDS else NUM_BANDS * (at_once // NUM_BANDS))
        losses: list[float] = []
        for number, batch in enumerate(batches):
            losses += sample_losses(
                self._denoiser,
                self._ready(batch),
                family=self._family,
                objective=self._setting.objective,
                policy=self._setting.setup.policy,
                guidance_scale=self._setting.trained_guidance,
            ).tolist()
            observer.preparing(f"held-out losses, {column}", number + 1, len(batches))
        return tuple(tuple(losses[start : start + NUM_BANDS]) for start in range(0, len(losses), NUM_BANDS))

    def _denoised(self, data: EvaluationData, observer: Observer, column: str) -> dict[float, tuple[Pixels, ...]]:
        setting = self._setting
        denoising = Denoising(
            self._family, self._denoiser, setting.objective, setting.setup.policy, setting.trained_guidance
        )
        pieces = in_pieces(data.held_out_images, self._at_once())
        found: dict[float, tuple[Pixels, ...]] = {}
        for number, level in enumerate(LEVELS):
            images: list[Pixels] = []
            for piece in pieces:
                places = range(len(images), len(images) + len(piece))
                clean = self._clean(piece)
                noise = torch.stack([self._noise(data, place, tuple(clean.shape[1:])) for place in places])
                captions = [data.captions[place] for place in places]
                conditioning = self._conditioning(captions, data.framing[places.start : places.stop])
                steps = max(1, math.ceil(level * self._num_steps))
                answer = denoising(clean, noise.to(clean.device), level, conditioning, steps)
                images += _as_pixels(self._decoded(answer))
            found[level] = tuple(images)
            observer.preparing(f"noising and denoising, {column}", number + 1, len(LEVELS))
        return found

    def _ready(self, batch: Batch) -> Batch:
        batch = batch.to(self._setting.setup.device)
        if self._vae is not None:
            assert batch.images is not None, "nothing is cached here"
            batch = replace(batch, moments=self._family.encode_images(self._vae, batch.images), images=None)
        assert batch.framing is not None, "these are images of the data"
        return replace(batch, conditioning=self._conditioning(batch.captions, batch.framing))

    def _clean(self, images: Tensor) -> Tensor:
        images = images.to(self._setting.setup.device)
        if self._vae is None:
            return images
        moments = self._family.encode_images(self._vae, images)
        # The mean of the latents' distribution: the image itself, as closely as latents represent it.
        mean, _ = moments.chunk(2, dim=1)
        return self._family.latents_from_moments(moments, torch.zeros_like(mean))

    def _decoded(self, answer: Tensor) -> Tensor:
        return answer if self._vae is None else self._family.images_from_latents(self._vae, answer)

    def _conditioning(self, captions: Sequence[str], framing: Tensor) -> Conditioning:
        of_captions = stacked([self._encoded[caption] for caption in captions]) if self._encoded else {}
        return {**of_captions, **self._family.image_conditioning(framing.to(self._setting.setup.device))}

    def _noise(self, data: EvaluationData, place: int, shape: tuple[int, ...]) -> Tensor:
        seed = derive_seed(data.experiment.validation.seed, "noise", HELD_OUT, int(data.held_out[place]))
        return normal(seed, shape)

    def _at_once(self) -> int:
        return images_at_once(self._setting.sampling.size)


def _as_pixels(images: Tensor) -> list[Pixels]:
    return list(((images.float() + 1) / 2).clamp(0, 1).movedim(1, -1).cpu().numpy())
