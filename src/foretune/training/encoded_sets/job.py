"""Plans an encoded set: reads what its samples are, describes the set, and splits it into parts."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.core.values.base import content_hash
from foretune.data.encoded import FACTS, EncodedFacts
from foretune.data.grouping import buckets_for, refuse_short_clips
from foretune.data.shards import Retry, ShardLimits, open_store
from foretune.data.shards.layout import MANIFEST
from foretune.data.sources import Source
from foretune.data.sources.base import IndexedSource
from foretune.data.split import split
from foretune.models.locating import locate
from foretune.training.encoded_sets.parts import PartRequest, encoder_plan_for, encodes_text, ranges
from foretune.training.encoded_sets.settings import differences_between, encoded_settings
from foretune.training.preparing import opened_data

_PROMPTS = "prompts"


@dataclass(frozen=True, kw_only=True)
class EncodeJob:
    """An encoded set that can be made."""

    facts: EncodedFacts
    base: PartRequest
    """What all parts have in common."""
    held_out: dict[int, list[int]]
    """By part, the samples that are cut in another way than for training."""
    prompts: tuple[str, ...]
    content: str
    """Hash of everything that decides the content of the set."""

    @property
    def num_parts(self) -> int:
        return -(-self.facts.num_samples // self.facts.part_size) + bool(self.prompts)

    def parts(self, folder: Path) -> Iterator[tuple[str, PartRequest]]:
        """Yields the name of each part and its request, in the order of their samples; prompts come last."""
        for number, (first, end) in enumerate(ranges(self.facts.num_samples, self.facts.part_size)):
            name = f"{number:06d}"
            yield name, self._part(folder, name, first=first, end=end, held_out=self.held_out.get(number, []))
        if self.prompts:
            yield _PROMPTS, self._part(folder, _PROMPTS, prompts=list(self.prompts))

    def _part(self, folder: Path, name: str, **fields: object) -> PartRequest:
        part = {"prefix": f"{name}-", "folder": str(folder / name), **fields}
        return dataclasses.replace(self.base, **part)  # type: ignore[arg-type]


def planned_job(asked: Asked, place: str, part_size: int, limits: ShardLimits, observer: Observer) -> EncodeJob:
    """Reads the data of an experiment and plans its set."""
    experiment = asked.experiment
    folder, _ = locate(asked.model)
    plan, size = encoder_plan_for(experiment, folder, torch.device("cpu"))
    source = opened_data(experiment, plan.family, size, observer)
    train, held_out = split(source, experiment.data.held_out)
    buckets = buckets_for(source, train, experiment.data, size, plan.family.frames_per_latent())
    for part in (train, held_out):
        refuse_short_clips(source, part, buckets, plan.family.frames_per_latent())
    settings = encoded_settings(experiment, plan, size)
    facts = EncodedFacts(
        settings=settings,
        num_samples=len(source),
        part_size=part_size,
        data_fingerprint=source.fingerprint(),
        is_generated=source.is_generated,
        repeats=_repeats(source),
        shard_ends=tuple(source.shard_ends) if isinstance(source, IndexedSource) else (),
    )
    has_text = encodes_text(experiment, plan)
    prompts = tuple(dict.fromkeys((*experiment.validation.prompts, ""))) if has_text else ()
    base = PartRequest(
        experiment=asked.as_asked,
        name=experiment.name,
        settings=settings,
        place=place,
        prefix="",
        folder="",
        max_shard_bytes=limits.max_bytes,
        max_shard_samples=limits.max_samples,
        buckets=[[bucket.width_px, bucket.height_px, bucket.num_frames] for bucket in buckets],
    )
    content = [dataclasses.asdict(facts), list(prompts), place, limits.max_bytes, limits.max_samples]
    return EncodeJob(
        facts=facts,
        base=base,
        held_out={} if settings["data.held_out"] == "any" else _by_part(held_out, part_size),
        prompts=prompts,
        content=content_hash(content),
    )


def claim(job: EncodeJob, retry: Retry = Retry()) -> None:  # noqa: B008 - frozen
    """Describes the set where it will be. Raises where another one is: nothing is overwritten."""
    store = open_store(job.base.place)
    there = EncodedFacts.read(store, retry)
    if there is None:
        if store.num_bytes(MANIFEST) is not None:
            raise UserError(f"{store.where()} holds a packed set. Choose another OUTPUT.")
        retry.call(f"Writing {store.where(FACTS)}", lambda: store.write(FACTS, job.facts.to_json()))
        return
    if there == EncodedFacts.from_json(job.facts.to_json()):
        return
    differences = differences_between(there.settings, job.facts.settings)
    if not differences:
        same_data = there.data_fingerprint == job.facts.data_fingerprint
        differences = "--part-size is not the same" if same_data else "the images or captions changed since"
    raise UserError(
        f"{store.where()} was begun for another experiment: {differences}. Choose another OUTPUT, or remove this one."
    )


def _repeats(source: Source) -> tuple[tuple[int, int], ...]:
    if source.is_generated or isinstance(source, IndexedSource):
        return ((1, len(source)),)
    runs = itertools.groupby(source.repeats(index) for index in range(len(source)))
    return tuple((times, sum(1 for _ in run)) for times, run in runs)


def _by_part(indices: Sequence[int], part_size: int) -> dict[int, list[int]]:
    parts: dict[int, list[int]] = {}
    for index in indices:
        parts.setdefault(int(index) // part_size, []).append(int(index))
    return parts
