"""Encodes one part of a set in its own process, and writes its shards. An executor calls `perform`.

A worker that was killed leaves whole shards, and entries in the part's folder; the next one uses both. Shards end where
they would have ended, so the set is the same to the byte.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.data.buckets import Bucket
from foretune.data.cache import TensorCache, read_entry
from foretune.data.encoded import FLIPPED, LATENTS, TEXT, facts_of_sample
from foretune.data.jobs import latent_jobs
from foretune.data.lookup import Lookup
from foretune.data.shards import (
    LostShard,
    Manifest,
    PackedSample,
    SampleFacts,
    ShardEntry,
    ShardLimits,
    ShardReader,
    ShardWriter,
    finished_shards,
    open_store,
)
from foretune.data.shards.stores import ShardStore
from foretune.data.sources import open_source
from foretune.models.locating import locate
from foretune.record.progress_file import ProgressFile
from foretune.training.devices import choose_device, refuse_what_the_device_cannot, use_threads
from foretune.training.encoded_sets.parts import PartRequest, PartSamples, encoder_plan_for, encodes_text
from foretune.training.encoded_sets.settings import differences_between, encoded_settings
from foretune.training.encoding import EncoderPlan

ENTRIES = "entries"
"""Folder of what is encoded and not in a shard yet."""


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Returns the shards of the part, and how many samples were in shards already."""
    part = PartRequest(**request)
    store = open_store(part.place)
    work = _opened(part)
    finished = _whole_shards(store, part.prefix, work.samples)
    num_finished = sum(shard.num_samples for shard in finished)
    if num_finished:
        observer.message(f"{num_finished:,} of {len(part):,} samples are in {len(finished)} finished shards.")
    if num_finished < len(work.samples):
        progress = _Progress(ProgressFile(Path(part.folder)), num_finished, len(part), work.num_phases)
        work.encode(num_finished, progress)
        limits = ShardLimits(max_bytes=part.max_shard_bytes, max_samples=part.max_shard_samples)
        with ShardWriter(store, prefix=part.prefix, first_number=len(finished), limits=limits) as writer:
            for sample in work.packed(num_finished):
                writer.add(sample)
        finished += writer.entries
    shutil.rmtree(work.entries, ignore_errors=True)
    return {"shards": [asdict(shard) for shard in finished], "num_reused": num_finished}


@dataclass(frozen=True)
class _Progress:
    """Samples of the part that are done; latents and embeddings count as half of the work each."""

    file: ProgressFile
    num_before: int
    num_samples: int
    num_phases: int

    def __call__(self, what: str, done: int, total: int) -> None:
        phase = 1 if what.endswith("captions") and self.num_phases > 1 else 0
        share = (phase + done / max(total, 1)) / self.num_phases
        num_done = self.num_before + round((self.num_samples - self.num_before) * share)
        self.file.preparing(what, num_done, self.num_samples)


@dataclass(frozen=True, kw_only=True)
class _SamplesWork:
    """Images or clips with their captions."""

    part: PartRequest
    plan: EncoderPlan
    encoded: PartSamples
    entries: Path

    @property
    def num_phases(self) -> int:
        return 1 if self.encoded.text is None else 2

    @cached_property
    def samples(self) -> list[tuple[str, SampleFacts]]:
        """The key and the facts of each."""
        numbers = range(self.part.first, self.part.end)
        return [(f"{number:09d}", facts_of_sample(self.encoded.source, number)) for number in numbers]

    @cached_property
    def _with_text(self) -> frozenset[int]:
        """The first sample with each caption."""
        firsts: dict[str, int] = {}
        for place, (_, facts) in enumerate(self.samples):
            firsts.setdefault(facts.caption, self.part.first + place)
        return frozenset(() if self.encoded.text is None else firsts.values())

    def encode(self, num_finished: int, progress: _Progress) -> None:
        numbers, held_out = range(self.part.first + num_finished, self.part.end), set(self.part.held_out)
        train = [number for number in numbers if number not in held_out]
        apart = [number for number in numbers if number in held_out]
        self.plan.fill_latents(self.encoded, train, apart, progress)
        if self.encoded.text is not None:
            self.plan.fill_text(self.encoded, [n for n in numbers if n in self._with_text], (), (), progress)

    def packed(self, num_finished: int) -> Iterator[PackedSample]:
        for number, (key, facts) in zip(range(self.part.first, self.part.end), self.samples, strict=True):
            if number >= self.part.first + num_finished:
                yield PackedSample(key=key, members=self._members(number), facts=facts)

    def _members(self, number: int) -> dict[str, bytes]:
        latents, text = self.encoded.latents, self.encoded.text
        assert latents is not None, "there are latents in every set"
        train, held_out = ((), (number,)) if number in self.part.held_out else ((number,), ())
        members = {
            FLIPPED if job.payload.plan.flip else LATENTS: latents.cache.content(job.key)
            for job in latent_jobs(self.encoded, train, held_out)
        }
        if text is not None and number in self._with_text:
            members[TEXT] = text.cache.content(text.text_key(self.encoded.source.info(number).caption))
        return members


@dataclass(frozen=True, kw_only=True)
class _PromptsWork:
    """Texts that are not captions of samples."""

    part: PartRequest
    plan: EncoderPlan
    encoded: PartSamples
    entries: Path
    num_phases: int = 1

    @cached_property
    def samples(self) -> list[tuple[str, SampleFacts]]:
        text = self._text
        facts = (SampleFacts(fingerprint=text.text_key(prompt), caption=prompt) for prompt in self.part.prompts)
        return [(f"prompt-{number:06d}", one) for number, one in enumerate(facts)]

    @property
    def _text(self) -> Lookup:
        assert self.encoded.text is not None, "prompts are for models that take text"
        return self.encoded.text

    def encode(self, num_finished: int, progress: _Progress) -> None:
        self.plan.fill_text(self.encoded, (), (), self.part.prompts[num_finished:], progress)

    def packed(self, num_finished: int) -> Iterator[PackedSample]:
        for key, facts in self.samples[num_finished:]:
            content = self._text.cache.content(facts.fingerprint)
            yield PackedSample(key=key, members={LATENTS: content}, facts=facts)


def _opened(part: PartRequest) -> _SamplesWork | _PromptsWork:
    asked = understand(part.experiment, source="The experiment", name=part.name)
    experiment = asked.experiment
    use_threads(experiment.parallel.threads)
    device = choose_device(experiment.parallel.device)
    folder, _ = locate(asked.model)
    plan, size = encoder_plan_for(experiment, folder, device)
    refuse_what_the_device_cannot(experiment, plan.family.name, device)
    if differences := differences_between(part.settings, encoded_settings(experiment, plan, size)):
        raise UserError(
            f"The model or the experiment changed since the set was begun: {differences}. Restore it, or encode into "
            "another OUTPUT."
        )
    entries = Path(part.folder) / ENTRIES
    cache = TensorCache(entries)
    encoded = PartSamples(
        source=open_source(experiment.data, largest=size),
        buckets=tuple(_bucket(sides) for sides in part.buckets),
        # The empty caption is encoded once, with the prompts.
        choice=experiment.data.model_copy(update={"caption_dropout": 0.0}),
        seed=experiment.train.seed,
        latents=Lookup(cache, plan.latent_lookup().encoder),
        text=Lookup(cache, plan.text_lookup().encoder) if encodes_text(experiment, plan) else None,
    )
    work = _PromptsWork if part.prompts else _SamplesWork
    return work(part=part, plan=plan, encoded=encoded, entries=entries)


def _bucket(sides: Sequence[int | None]) -> Bucket:
    width_px, height_px, num_frames = sides
    assert width_px is not None
    assert height_px is not None
    return Bucket(width_px, height_px, num_frames)


def _whole_shards(store: ShardStore, prefix: str, expected: Sequence[tuple[str, SampleFacts]]) -> list[ShardEntry]:
    """Returns the shards of an earlier worker up to the first that is damaged, or has other samples."""
    whole: list[ShardEntry] = []
    start = 0
    try:
        for shard in finished_shards(store, prefix=prefix):
            if not _holds(store, shard, expected[start : start + shard.num_samples]):
                break
            whole.append(shard)
            start += shard.num_samples
    except LostShard:
        pass  # its index is damaged: it is written again
    return whole


def _holds(store: ShardStore, shard: ShardEntry, expected: Sequence[tuple[str, SampleFacts]]) -> bool:
    reader = ShardReader(store, Manifest(shards=(shard,)), verifies=False)
    found = [reader.sample(number) for number in range(shard.num_samples)]
    if [(sample.key, sample.facts) for sample in found] != list(expected):
        return False
    if max(member.start + member.num_bytes for sample in found for member in sample.members.values()) > shard.num_bytes:
        return False
    contents = (reader.members(number).values() for number in range(len(found)))
    return all(read_entry(data) is not None for members in contents for data in members)
