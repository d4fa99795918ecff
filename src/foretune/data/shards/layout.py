"""What a packed set consists of: its files, and the manifest that lists them.

- `shards.json`: the manifest, which lists every shard with its number of samples, bytes and checksums
- `samples.bin`: a few bytes per sample, all that the split and the buckets need (`table`)
- `000000.tar`: a WebDataset shard of KEY.jpg, KEY.txt, ...
- `000000.index`: where its samples are, and what is known about each (`index`)
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from foretune.core.errors import UserError
from foretune.core.input_files import parse_json, shown

MANIFEST = "shards.json"
TABLE = "samples.bin"
TAR_SUFFIX = ".tar"
INDEX_SUFFIX = ".index"
VERSION = 1
DIGEST_BYTES = 20
MOST_MANIFEST_BYTES = 2**30
"""A million shards take a quarter of it."""
_HEX = set("0123456789abcdef")
_MOST_NAME_LETTERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """One shard, as the manifest lists it."""

    name: str
    """Of the tar, relative to the manifest."""
    num_samples: int
    num_bytes: int
    """Of the tar."""
    checksum: str
    """BLAKE2b of the tar, 160 bits."""
    index_bytes: int
    index_checksum: str
    content: str
    """Hash over the fingerprints and captions of its samples, in order."""
    num_captions: int
    """Samples whose caption is not empty."""

    @property
    def index_name(self) -> str:
        return index_name(self.name)


def index_name(shard_name: str) -> str:
    """Returns the name of a shard's index: `000000.tar` has `000000.index`."""
    return shard_name.removesuffix(TAR_SUFFIX) + INDEX_SUFFIX


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """All shards of a set, in their order: sample i of the set is counted through them."""

    shards: tuple[ShardEntry, ...]
    holds: str = "images"
    """What the samples are: images, clips, or what another command writes."""
    table_checksum: str = ""
    table_bytes: int = 0

    @property
    def num_samples(self) -> int:
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Of all tars."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Hash over the contents and captions of all samples in their order, wherever the set is stored."""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"shards")
        for shard in self.shards:
            digest.update(bytes.fromhex(shard.content))
        return digest.hexdigest()

    def to_json(self) -> bytes:
        """The file: columns instead of a repeated key for each shard."""
        columns = {field.name: [getattr(shard, field.name) for shard in self.shards] for field in fields(ShardEntry)}
        document = {"version": VERSION, **{key: value for key, value in asdict(self).items() if key != "shards"}}
        return json.dumps({**document, "num_samples": self.num_samples, "shards": columns}, indent=0).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Manifest":
        """Reads what `to_json` wrote; raises `UserError` where it is anything else."""
        try:
            document = parse_json(data)
            if document["version"] != VERSION:
                raise UserError(
                    f"{shown(where)} has version {shown(str(document['version']))}; this version of Foretune reads "
                    f"{VERSION}. Update Foretune."
                )
            return cls(
                shards=tuple(_entries(document["shards"])),
                holds=_text(document["holds"]),
                table_checksum=_checksum(document["table_checksum"]),
                table_bytes=_number(document["table_bytes"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{shown(where)} is not the manifest of a packed set ({shown(str(error))}). Make it again: foretune "
                "data pack SOURCE OUTPUT"
            ) from error


def digest(data: bytes) -> str:
    """Returns the checksum of a file's content."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _entries(columns: Any) -> Iterable[ShardEntry]:
    names = [field.name for field in fields(ShardEntry)]
    readers = {"name": shard_name, "checksum": _checksum, "index_checksum": _checksum, "content": _checksum}
    read: list[list[Any]] = [[readers.get(name, _number)(value) for value in columns[name]] for name in names]
    if len(set(read[0])) != len(read[0]):
        raise ValueError("a shard is listed twice")
    for values in zip(*read, strict=True):
        yield ShardEntry(**dict(zip(names, values, strict=True)))


def shard_name(value: Any) -> str:
    """Returns the name of a shard if it is a plain one: no folder, nothing hidden."""
    name = _text(value)
    allowed = name.replace("-", "").replace("_", "").replace(".", "")
    is_plain = name.endswith(TAR_SUFFIX) and allowed.isascii() and allowed.isalnum() and len(name) < _MOST_NAME_LETTERS
    if not is_plain or name.startswith(".") or ".." in name:
        raise ValueError(f"{name!r} is not the name of a shard")
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is not a number of bytes or samples")
    return value


def _checksum(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 2 * DIGEST_BYTES or set(value) - _HEX:
        raise ValueError(f"{value!r} is not a checksum")
    return value
