"""The parts of an encoded set: which samples each has, and what its worker needs to know."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from foretune.choices.data import Data
from foretune.choices.experiment import Experiment
from foretune.data.buckets import Bucket
from foretune.data.lookup import Lookup
from foretune.data.sources import Source
from foretune.models.locating import open_family
from foretune.training.encoded_sets.settings import require_cached
from foretune.training.encoding import EncoderPlan
from foretune.training.preparing import encoder_plan_of
from foretune.training.sizes import text_tokens, training_size

WORKER = "foretune.training.encoded_sets.part_worker"
"""The module that executors call."""


@dataclass(frozen=True, kw_only=True)
class PartRequest:
    """One part, as plain data."""

    experiment: dict[str, Any]
    """As requested, before any default."""
    name: str
    """Of the experiment, where it has none."""
    settings: dict[str, Any]
    """Those of the set: a worker that finds others refuses."""
    place: str
    """Of the set."""
    prefix: str
    """Begins the names of its shards."""
    max_shard_bytes: int
    max_shard_samples: int
    folder: str
    """Where the worker stores entries until their shard is written."""
    first: int = 0
    end: int = 0
    """The samples from `first` to before `end`."""
    held_out: list[int] = field(default_factory=list)
    """Those of them that are cut in another way than for training."""
    buckets: list[list[int | None]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    """Texts to encode instead of samples."""

    def __len__(self) -> int:
        return self.end - self.first or len(self.prompts)

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PartSamples:
    """The samples of a set, and what decides which entries they need."""

    source: Source
    buckets: tuple[Bucket, ...]
    choice: Data
    seed: int
    latents: Lookup | None
    text: Lookup | None


def ranges(num_samples: int, part_size: int) -> Iterator[tuple[int, int]]:
    """Yields where each part begins and ends. Depends on nothing else, so any workers can encode them in any order."""
    for first in range(0, num_samples, part_size):
        yield first, min(first + part_size, num_samples)


def encoder_plan_for(experiment: Experiment, folder: Path, device: torch.device) -> tuple[EncoderPlan, Bucket]:
    """Returns the encoders as a training would use them, and the size of its largest bucket."""
    family = open_family(folder)
    size = training_size(experiment, family)
    plan = encoder_plan_of(experiment, family, folder, device, text_tokens(experiment, family))
    require_cached(experiment, plan)
    return plan, size


def encodes_text(experiment: Experiment, plan: EncoderPlan) -> bool:
    """Whether captions are encoded, too."""
    return bool(plan.family.text_parts) and experiment.levers.cache_text
