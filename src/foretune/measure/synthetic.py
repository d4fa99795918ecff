"""A run on made-up data: latents and captions of the right shapes, so neither encoders nor images are needed.

What a step computes does not depend on the numbers it is given, so its speed and memory are those of real data that is
cached. What reading and decoding cost is not in it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference
from foretune.core.draws import Purpose, derive_seed, uniform
from foretune.core.observer import Observer
from foretune.data.batch import Batch, normal
from foretune.data.buckets import Bucket
from foretune.models.family import GUIDE, Family, TensorSpec
from foretune.models.locating import open_family
from foretune.models.random_weights import family_without_weights
from foretune.models.trainable import TrainableFamily
from foretune.training.encoding import LiveEncoders
from foretune.training.places import places_of
from foretune.training.preparing import (
    Prepared,
    build_model,
    checked_adapters,
    checked_device,
)
from foretune.training.ranks import ALONE, Ranks
from foretune.training.sizes import text_tokens, training_size


@dataclass(frozen=True, kw_only=True)
class SyntheticBatches(Dataset[Batch]):
    """Batch number `step * gradient_accumulation + micro`. Latents and captions are drawn once, the noise for each."""

    family: Family
    batch_size: int
    gradient_accumulation: int
    size: Bucket
    num_text_tokens: int
    seed: int
    ranks: Ranks = ALONE
    """Each process draws other noise."""
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, number: int) -> Batch:
        step, micro = divmod(number, self.gradient_accumulation)
        shape = (self.batch_size, *self._latent_shape())
        if not self._kept:
            self._kept.update(sample=self._sample(shape), conditioning=self._conditioning(shape))
        has_latents = self.family.has_latents
        # Of all batches of all processes.
        place = number * self.ranks.size + self.ranks.rank
        first = place * self.batch_size
        times = [uniform(self.seed, "timestep", step, first + slot) for slot in range(self.batch_size)]
        return Batch(
            step=step,
            micro=micro,
            indices=tuple(range(self.batch_size)),
            captions=("",) * self.batch_size,
            images=None if has_latents else self._kept["sample"],
            moments=self._kept["sample"] if has_latents else None,
            conditioning=self._kept["conditioning"] or None,
            noise=self._drawn("noise", place, shape),
            posterior_noise=self._drawn("posterior", place, shape) if has_latents else None,
            uniform=torch.tensor(times, dtype=torch.float64),
        )

    def _latent_shape(self) -> tuple[int, ...]:
        return self.family.latent_shape(self.size.height_px, self.size.width_px, self.size.num_frames or 1)

    def _sample(self, shape: tuple[int, ...]) -> Tensor:
        """Pixels, or the mean and log-variance of latents."""
        if not self.family.has_latents:
            return self._drawn("sample", 0, shape).clamp(-1, 1)
        return self._drawn("sample", 0, (shape[0], 2 * shape[1], *shape[2:]))

    def _conditioning(self, latent: tuple[int, ...]) -> dict[str, Tensor]:
        specs = self.family.conditioning_specs(self.batch_size, self.num_text_tokens)
        made = {name: self._caption(number, spec) for number, (name, spec) in enumerate(specs.items(), start=1)}
        if channels := self.family.num_guide_channels():
            made[GUIDE] = self._drawn("sample", len(made) + 1, (latent[0], channels, *latent[2:]))
        return made

    def _caption(self, number: int, spec: TensorSpec) -> Tensor:
        if spec.dtype == torch.bool:
            return torch.ones(spec.shape, dtype=torch.bool)  # every token counts: the longest caption
        if not spec.dtype.is_floating_point:
            return torch.zeros(spec.shape, dtype=spec.dtype)
        return self._drawn("sample", number, spec.shape).to(spec.dtype)

    def _drawn(self, purpose: Purpose, number: int, shape: tuple[int, ...]) -> Tensor:
        return normal(derive_seed(self.seed, purpose, number), shape)


def synthetic_batches(experiment: Experiment, family: Family, ranks: Ranks = ALONE) -> SyntheticBatches:
    """Batches of the sizes an experiment asks for; every sample has the largest bucket."""
    return SyntheticBatches(
        family=family,
        batch_size=experiment.train.batch_size,
        gradient_accumulation=experiment.train.gradient_accumulation,
        size=training_size(experiment, family),
        num_text_tokens=text_tokens(experiment, family),
        seed=experiment.train.seed,
        ranks=ranks,
    )


def prepare_synthetic(experiment: Experiment, folder: Path, observer: Observer, ranks: Ranks = ALONE) -> Prepared:
    """As `prepare`, without data and encoders. Neither is validated, so no prompts and no held-out samples."""
    return _prepared(experiment, open_family(folder), folder, observer, ranks)


def prepare_random(experiment: Experiment, model: ModelReference, observer: Observer, ranks: Ranks = ALONE) -> Prepared:
    """The same with random weights, for which nothing of the model is downloaded."""
    return _prepared(experiment, family_without_weights(model), None, observer, ranks)


def _prepared(
    experiment: Experiment, family: TrainableFamily, folder: Path | None, observer: Observer, ranks: Ranks
) -> Prepared:
    read_adapters = checked_adapters(experiment, family)
    device = checked_device(experiment, family, observer, ranks)
    places = places_of(ranks, device)
    family.objective(experiment.objective)
    batches = synthetic_batches(experiment, family, ranks)
    assert experiment.train.steps is not None, "synthetic data has no epochs"
    built = build_model(experiment, family, folder, device, observer, ranks)
    return Prepared(
        experiment=experiment,
        family=family,
        folder=folder,
        device=device,
        method=built.method,
        step=built.step,
        batch_maker=batches,
        encoders=LiveEncoders(family, None, None, batches.num_text_tokens),
        held_out=[],
        encoded_prompts=[],
        unconditional=None,
        num_steps=experiment.train.steps,
        size=batches.size,
        num_text_tokens=batches.num_text_tokens,
        effective={
            **built.effective,
            "num_steps": experiment.train.steps,
            "samples_per_step": experiment.samples_per_step(),
            "data_fingerprint": "synthetic",
            **built.hashes(experiment, "synthetic", read_adapters),
            **batches.size.facts(),
            "num_text_tokens": batches.num_text_tokens,
        },
        ranks=ranks,
        places=places,
    )
