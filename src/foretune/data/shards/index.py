"""The index of one shard: where each member of each sample is, and what is known about it without decoding.

A file of columns behind a short JSON header, so that a shard of 10,000 samples is read at once and takes about a
hundred bytes per sample, plus its caption. With the index, training on cached latents reads no tar at all.
"""

import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.core.input_files import parse_json, shown
from foretune.data.shards.layout import DIGEST_BYTES
from foretune.data.shards.retrying import ShardFault

_MAGIC = b"FTSHARD1"
_MOST_HEADER_BYTES = 2**20
_MOST_SUFFIXES = 255
_DTYPES: dict[str, str] = {
    "fingerprint": "|u1",
    "width_px": "<u4",
    "height_px": "<u4",
    "num_frames": "<u4",
    "key_end": "<u4",
    "caption_end": "<u8",
    "member_end": "<u4",
    "member_suffix": "|u1",
    "member_start": "<u8",
    "member_bytes": "<u8",
    "timing": "<i8",
    "keys": "|u1",
    "captions": "|u1",
}
_PER_SAMPLE = {"fingerprint": DIGEST_BYTES, "timing": 4}
"""Values for each sample; 1 for other columns. `keys`, `captions` and `member_*` have their own lengths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFacts:
    """What is known about a sample without decoding it."""

    fingerprint: str
    """Hash of the main member's content (`sources.fingerprint.content_fingerprint`): 40 hex digits."""
    caption: str = ""
    width_px: int = 0
    height_px: int = 0
    """0 for what has no size."""
    num_frames: int = 1
    timing: tuple[int, int, int, int] = (0, 1, 0, 1)
    """For a video file: the time from its first frame to its last one and its shortest tick, in seconds, each as
    numerator and denominator."""


@dataclass(frozen=True, slots=True)
class MemberRange:
    """Where a member's content is in its tar."""

    start: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedSample:
    """A sample of a shard."""

    key: str
    facts: SampleFacts
    members: dict[str, MemberRange]
    """By suffix without its first dot, in the order of the tar."""


@dataclass
class IndexBuilder:
    """Collects the samples of one shard."""

    _suffixes: dict[str, int] = field(default_factory=dict)
    _columns: dict[str, Any] = field(default_factory=lambda: {name: [] for name in _DTYPES})
    _keys: bytearray = field(default_factory=bytearray)
    _captions: bytearray = field(default_factory=bytearray)
    _content: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"shard"))
    num_samples: int = 0
    num_captions: int = 0

    def add(self, key: str, facts: SampleFacts, members: dict[str, MemberRange]) -> None:
        """Adds the next sample of the tar."""
        columns = self._columns
        columns["fingerprint"].append(bytes.fromhex(facts.fingerprint))
        for name in ("width_px", "height_px", "num_frames"):
            columns[name].append(getattr(facts, name))
        columns["timing"].extend(facts.timing)
        for suffix, found in members.items():
            columns["member_suffix"].append(self._suffixes.setdefault(suffix, len(self._suffixes)))
            columns["member_start"].append(found.start)
            columns["member_bytes"].append(found.num_bytes)
        columns["member_end"].append(len(columns["member_start"]))
        caption = facts.caption.encode()
        self._keys += key.encode()
        self._captions += caption
        columns["key_end"].append(len(self._keys))
        columns["caption_end"].append(len(self._captions))
        self._content.update(bytes.fromhex(facts.fingerprint) + struct.pack("<Q", len(caption)) + caption)
        self.num_samples += 1
        self.num_captions += bool(caption)

    @property
    def content(self) -> str:
        """The hash of `ShardEntry.content`."""
        return str(self._content.hexdigest())

    def to_bytes(self, tar_checksum: str, tar_bytes: int) -> bytes:
        """Returns the file, for a tar of this checksum and length."""
        if len(self._suffixes) > _MOST_SUFFIXES:
            raise ValueError(f"{len(self._suffixes)} kinds of members")
        own = {**self._columns, "keys": self._keys, "captions": self._captions}
        own["fingerprint"] = b"".join(own["fingerprint"])
        if own["timing"] == [0, 1, 0, 1] * self.num_samples:
            own["timing"] = []
        arrays = {
            name: np.frombuffer(bytes(values), np.uint8) if isinstance(values, bytes | bytearray)
            else np.asarray(values, dtype=_DTYPES[name])
            for name, values in own.items()
        }  # fmt: skip
        header = {
            "num_samples": self.num_samples,
            "num_captions": self.num_captions,
            "content": self.content,
            "tar": {"checksum": tar_checksum, "num_bytes": tar_bytes},
            "suffixes": list(self._suffixes),
            "columns": [[name, len(array)] for name, array in arrays.items()],
        }
        text = json.dumps(header).encode()
        return b"".join([_MAGIC, struct.pack("<I", len(text)), text, *(array.tobytes() for array in arrays.values())])


class ShardIndex:
    """The samples of one shard, by their place in it."""

    def __init__(self, header: dict[str, Any], columns: dict[str, npt.NDArray[Any]]) -> None:
        self.num_samples: int = header["num_samples"]
        self.num_captions: int = header["num_captions"]
        self.content: str = header["content"]
        self.tar_checksum: str = header["tar"]["checksum"]
        self.tar_bytes: int = header["tar"]["num_bytes"]
        self._suffixes: list[str] = header["suffixes"]
        self._columns = columns

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, place: int) -> IndexedSample:
        return IndexedSample(key=self._text("key", place), facts=self.facts(place), members=self._members(place))

    def facts(self, place: int) -> SampleFacts:
        """Returns what is known about a sample."""
        columns = self._columns
        start = place * DIGEST_BYTES
        timing = columns["timing"]
        further: dict[str, Any] = {}
        if len(timing):
            further["timing"] = tuple(int(value) for value in timing[4 * place : 4 * place + 4])
        return SampleFacts(
            fingerprint=columns["fingerprint"][start : start + DIGEST_BYTES].tobytes().hex(),
            caption=self._text("caption", place),
            width_px=int(columns["width_px"][place]),
            height_px=int(columns["height_px"][place]),
            num_frames=int(columns["num_frames"][place]),
            **further,
        )

    def column(self, name: str) -> npt.NDArray[Any]:
        """Returns one value for each sample: width_px, height_px, num_frames; or 20 for each, its fingerprint."""
        return self._columns[name]

    def _members(self, place: int) -> dict[str, MemberRange]:
        columns = self._columns
        first = int(columns["member_end"][place - 1]) if place else 0
        return {
            self._suffixes[columns["member_suffix"][number]]: MemberRange(
                int(columns["member_start"][number]), int(columns["member_bytes"][number])
            )
            for number in range(first, int(columns["member_end"][place]))
        }

    def _text(self, what: str, place: int) -> str:
        ends = self._columns[f"{what}_end"]
        start = int(ends[place - 1]) if place else 0
        try:
            return self._columns[f"{what}s"][start : int(ends[place])].tobytes().decode()
        except UnicodeDecodeError as error:
            raise ShardFault(f"its index has a {what} that is not text in UTF-8") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> "ShardIndex":
        """Reads what `IndexBuilder.to_bytes` wrote; raises `ShardFault` where it is anything else."""
        try:
            return cls._read(data)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise ShardFault(f"its index is damaged ({shown(str(error))})") from error

    @classmethod
    def _read(cls, data: bytes) -> "ShardIndex":
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it does not begin as one")
        start = len(_MAGIC) + 4
        (header_bytes,) = struct.unpack_from("<I", data, len(_MAGIC))
        if header_bytes > _MOST_HEADER_BYTES:
            raise ValueError("its header is too long")
        header = parse_json(data[start : start + header_bytes])
        place = start + header_bytes
        columns = {}
        for name, count in header["columns"]:
            dtype = np.dtype(_DTYPES[name])
            columns[name] = np.frombuffer(data, dtype, count, place)
            place += count * dtype.itemsize
        if place != len(data):
            raise ValueError("it has another length than its header says")
        _require_consistent(header, columns)
        return cls(header, columns)


def _require_consistent(header: dict[str, Any], columns: dict[str, npt.NDArray[Any]]) -> None:
    """Every place that a column leads to must be there, whoever wrote the file."""
    num_samples = header["num_samples"]
    for name in ("fingerprint", "width_px", "height_px", "num_frames", "key_end", "caption_end", "member_end"):
        if len(columns[name]) != num_samples * _PER_SAMPLE.get(name, 1):
            raise ValueError(f"its column {name} has another length")
    if len(columns["timing"]) not in (0, 4 * num_samples):
        raise ValueError("its column timing has another length")
    if np.any(columns["timing"][1::2] <= 0):
        raise ValueError("its column timing divides by zero")
    ends = {"key_end": "keys", "caption_end": "captions", "member_end": "member_start"}
    for name, of in ends.items():
        values = columns[name].astype(np.int64)
        if np.any(np.diff(values, prepend=0) < 0) or (values[-1] if num_samples else 0) != len(columns[of]):
            raise ValueError(f"its column {name} does not add up")
    if not len(columns["member_start"]) == len(columns["member_bytes"]) == len(columns["member_suffix"]):
        raise ValueError("its members do not add up")
    if len(columns["member_suffix"]) and columns["member_suffix"].max() >= len(header["suffixes"]):
        raise ValueError("it names a kind of member that it does not list")
