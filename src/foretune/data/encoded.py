"""Encoded sets: shards that hold latents and text embeddings, so that training needs neither images nor encoders.

`foretune data encode` writes them (`training.encoded_sets`). A sample's members are the files that the caches would
hold, byte for byte; its facts are those of the image or clip, so that split, buckets, crops and order are the same.
Samples are encoded in parts. The first sample of a part with a caption has its embedding, for all others of the part.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from foretune.choices.addresses import is_remote
from foretune.choices.data import Data, ShardsData
from foretune.core.errors import UserError
from foretune.core.input_files import parse_json, shown
from foretune.data.buckets import Bucket
from foretune.data.cache import Entry, read_entry
from foretune.data.images import Pixels
from foretune.data.lookup import Lookup
from foretune.data.shards import Retry, SampleFacts, ShardFault, ShardReader, open_store, read_manifest
from foretune.data.shards.layout import MANIFEST
from foretune.data.shards.stores import ShardStore
from foretune.data.sources.base import SampleInfo, Source
from foretune.data.sources.shards import ShardSource
from foretune.data.transforms import CropPlan

HOLDS = "latents"
"""`Manifest.holds` of an encoded set."""
FACTS = "encoded.json"
LATENTS, FLIPPED, TEXT = "safetensors", "flip.safetensors", "text.safetensors"
"""Members of a sample: its latents, those of the mirrored image, and the embedding of its caption."""
_VERSION = 1
_MOST_FACTS_BYTES = 2**28
_MOST_PARTS = 64
_ENCODE_AGAIN = "Encode it again: foretune data encode EXPERIMENT.yaml OUTPUT"


@dataclass(frozen=True, kw_only=True)
class EncodedFacts:
    """What an encoded set was made of and how; written before its first shard."""

    settings: dict[str, Any]
    """Everything that the stored tensors depend on, beside the samples (`training.encoded_sets.settings`)."""
    num_samples: int
    part_size: int
    """Samples of each part but the last."""
    data_fingerprint: str
    is_generated: bool
    repeats: tuple[tuple[int, int], ...]
    """How often an epoch uses samples, and how many in a row have that."""
    shard_ends: tuple[int, ...]
    """Of the packed set that was encoded: its samples are shuffled in windows of these shards. Empty for others."""

    def to_json(self) -> bytes:
        return (json.dumps({"version": _VERSION, **asdict(self)}, indent=1) + "\n").encode()

    @classmethod
    def read(cls, store: ShardStore, retry: Retry = Retry()) -> "EncodedFacts | None":  # noqa: B008 - frozen
        """Returns the facts of the set in a store; None where there is none."""
        where = store.where(FACTS)
        data = retry.call(f"The file {where}", lambda: store.read_small(FACTS, _MOST_FACTS_BYTES))
        if data is None:
            return None
        try:
            return cls.from_json(data)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{where} does not describe an encoded set ({shown(str(error))}). {_ENCODE_AGAIN}"
            ) from error

    @classmethod
    def from_json(cls, data: bytes) -> "EncodedFacts":
        """Reads what `to_json` wrote; raises ValueError, KeyError or TypeError where it is anything else."""
        document = dict(parse_json(data))
        if document.pop("version") != _VERSION:
            raise ValueError("it has a version that this Foretune does not know")
        facts = cls(**{
            **document,
            "num_samples": int(document["num_samples"]),
            "part_size": int(document["part_size"]),
            "settings": dict(document["settings"]),
            "repeats": tuple((int(times), int(num)) for times, num in document["repeats"]),
            "shard_ends": tuple(int(end) for end in document["shard_ends"]),
        })  # fmt: skip
        if facts.num_samples < 1 or facts.part_size < 1:
            raise ValueError("it has no samples")
        if sum(num for _, num in facts.repeats) != facts.num_samples:
            raise ValueError("its repeats do not add up")
        ends = list(facts.shard_ends)
        if ends and (ends[-1] != facts.num_samples or ends != sorted(ends)):
            raise ValueError("its shards do not add up")
        return facts


def facts_of_sample(source: Source, index: int) -> SampleFacts:
    """Returns what the index of an encoded set says about a sample."""
    if isinstance(source, ShardSource):
        return source.reader.facts(index)
    info = source.info(index)
    return SampleFacts(
        fingerprint=info.fingerprint,
        caption=info.caption,
        width_px=info.width_px,
        height_px=info.height_px,
        num_frames=info.num_frames,
    )


class EncodedSet:
    """An encoded set that is read. Picklable."""

    def __init__(self, reader: ShardReader, facts: EncodedFacts, *, is_kept: bool = False) -> None:
        """`is_kept`: whether what was read is kept in the cache, so that it is transferred once."""
        self.reader, self.facts, self.is_kept = reader, facts, is_kept
        self.place = reader.store.where()
        self._prompts: dict[str, int] | None = None
        self._captions: OrderedDict[int, dict[str, int]] = OrderedDict()
        """The first sample with each caption, by part."""

    def __len__(self) -> int:
        return self.facts.num_samples

    def latents(self, index: int, *, is_flipped: bool) -> Entry:
        """Returns the tensors of an image or a clip, or of its mirror image."""
        return self._entry(index, FLIPPED if is_flipped else LATENTS)

    def text(self, caption: str, index: int | None) -> Entry | None:
        """Returns the tensors of the caption of a sample, or of a prompt; None for a prompt that was not encoded."""
        number = self._prompt_numbers().get(caption)
        if number is not None:
            return self._entry(number, LATENTS)
        return None if index is None else self._entry(self._first_of_caption(index), TEXT)

    def has_prompt(self, prompt: str) -> bool:
        return prompt in self._prompt_numbers()

    def _prompt_numbers(self) -> dict[str, int]:
        if self._prompts is None:
            numbers = range(self.facts.num_samples, len(self.reader))
            self._prompts = {self.reader.facts(number).caption: number for number in numbers}
        return self._prompts

    def _first_of_caption(self, index: int) -> int:
        """Returns the sample of the same part that has the embedding of a sample's caption."""
        if TEXT in self.reader.sample(index).members:
            return index
        part = index // self.facts.part_size
        if part not in self._captions:
            start = part * self.facts.part_size
            samples = {n: self.reader.sample(n) for n in range(start, min(start + self.facts.part_size, len(self)))}
            self._captions[part] = {one.facts.caption: n for n, one in samples.items() if TEXT in one.members}
            if len(self._captions) > _MOST_PARTS:
                self._captions.popitem(last=False)
        try:
            return self._captions[part][self.reader.facts(index).caption]
        except KeyError as error:
            raise UserError(
                f"The embedding of the caption of {self.reader.name(index)} is missing. {_ENCODE_AGAIN}"
            ) from error

    def _entry(self, number: int, suffix: str) -> Entry:
        def attempt() -> Entry:
            data = self.reader.members(number, [suffix]).get(suffix)
            if data is None:
                raise UserError(f"{self.reader.name(number)} has no {suffix}. {_ENCODE_AGAIN}")
            entry = read_entry(data)
            if entry is None:
                raise ShardFault(f"{self.reader.name(number)} differs from its checksum")
            return entry

        return self.reader.retry.call(f"A sample of {self.place}", attempt)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_captions": OrderedDict()}


@dataclass(frozen=True)
class EncodedLookup(Lookup):
    """Reads entries of samples from an encoded set; the cache has those of prompts that the set lacks."""

    encoded: EncodedSet = field(kw_only=True)

    def sample(self, index: int, info: SampleInfo, plan: CropPlan, bucket: Bucket) -> Entry:
        what = (info.fingerprint, plan, bucket)
        return self.recent.get(
            what,
            lambda: self._kept(
                self.latent_key(info, plan, bucket), lambda: self.encoded.latents(index, is_flipped=plan.flip)
            ),
        )

    def conditioning(self, caption: str, index: int | None = None) -> Entry:
        return self.recent.get(caption, lambda: self._kept(self.text_key(caption), lambda: self._text(caption, index)))

    def _text(self, caption: str, index: int | None) -> Entry:
        entry = self.encoded.text(caption, index)
        return self.cache.get(self.text_key(caption)) if entry is None else entry

    def _kept(self, key: str, read: Callable[[], Entry]) -> Entry:
        if not self.encoded.is_kept:
            return read()
        if self.cache.has(key):
            return self.cache.get(key)
        entry = read()
        self.cache.put(key, entry)
        return entry


class EncodedSource:
    """The samples of an encoded set in place of the images or clips that it was made of."""

    def __init__(self, encoded: EncodedSet) -> None:
        self.encoded = encoded
        self.is_generated = encoded.facts.is_generated
        times, nums = zip(*encoded.facts.repeats, strict=True)
        self._times, self._ends = np.array(times), np.cumsum(nums)

    def __len__(self) -> int:
        return self.encoded.facts.num_samples

    def info(self, index: int) -> SampleInfo:
        """Returns size, caption and fingerprint of the image or clip."""
        facts = self.encoded.reader.facts(index)
        return SampleInfo(
            fingerprint=facts.fingerprint,
            width_px=facts.width_px,
            height_px=facts.height_px,
            caption=facts.caption,
            num_frames=facts.num_frames,
        )

    def pixels(self, index: int) -> Pixels:
        """Raises: there are only latents."""
        _no_pixels(self.encoded, index)

    def name(self, index: int) -> str:
        return self.encoded.reader.name(index)

    def repeats(self, index: int) -> int:
        return int(self._times[np.searchsorted(self._ends, index, side="right")])

    def notes(self) -> tuple[str, ...]:
        """Returns nothing: they were reported when it was encoded."""
        return ()

    def fingerprint(self) -> str:
        """Returns the hash of the images or clips, their captions and repeats."""
        return self.encoded.facts.data_fingerprint


class EncodedShardSource(ShardSource):
    """The same for a packed set, in whose windows samples are shuffled."""

    def __init__(self, encoded: EncodedSet, choice: ShardsData) -> None:
        super().__init__(encoded.reader, choice)
        self.encoded = encoded

    def __len__(self) -> int:
        return self.encoded.facts.num_samples

    @property
    def shard_ends(self) -> Sequence[int]:
        return self.encoded.facts.shard_ends

    def rows(self) -> npt.NDArray[np.void]:
        return super().rows()[: len(self)]

    def frames(self, index: int, num_frames: int) -> Sequence[Pixels]:
        """Raises: there are only latents."""
        _no_pixels(self.encoded, index)

    def notes(self) -> tuple[str, ...]:
        return ()

    def fingerprint(self) -> str:
        return self.encoded.facts.data_fingerprint


def _no_pixels(encoded: EncodedSet, index: int) -> NoReturn:
    raise UserError(
        f"{encoded.reader.name(index)} holds latents, and this needs images. Leave data.encoded out to read them from "
        "the data."
    )


def open_encoded(choice: Data, *, retry: Retry = Retry()) -> EncodedSet:  # noqa: B008 - frozen
    """Opens the set that `data.encoded` names: reads its facts and its manifest."""
    assert choice.encoded is not None, "asked before"
    store = open_store(choice.encoded)
    facts = EncodedFacts.read(store, retry)
    if facts is None:
        raise UserError(f"data.encoded: {store.where()} is not an encoded set: it has no {FACTS}. {_ENCODE_AGAIN}")
    if store.num_bytes(MANIFEST) is None:
        raise UserError(
            f"data.encoded: {store.where()} is not complete. Run the command that encodes it again: it continues where "
            "it stopped."
        )
    manifest = read_manifest(store, retry)
    if manifest.holds != HOLDS or manifest.num_samples < facts.num_samples:
        raise UserError(
            f"{store.where()} holds {manifest.num_samples:,} samples ({shown(manifest.holds)}), and its {FACTS} "
            f"promises {facts.num_samples:,}. {_ENCODE_AGAIN}"
        )
    # Listed sources are read in any order, so all of their indexes stay in memory, as the samples of a folder do.
    num_indexes = max(1, len(manifest.shards))
    # A packed set may be larger than the disk.
    is_kept = is_remote(choice.encoded) and not isinstance(choice, ShardsData)
    return EncodedSet(
        ShardReader(store, manifest, retry=retry, max_indexes=num_indexes, verifies=False), facts, is_kept=is_kept
    )


def source_of(encoded: EncodedSet, choice: Data) -> Source:
    """Returns the samples of a set, for an experiment with this data."""
    if isinstance(choice, ShardsData):
        return EncodedShardSource(encoded, choice)
    return EncodedSource(encoded)
