"""Caches encoded images and captions on disk, under a hash of everything they depend on.

An entry's key is the hash of the encoder's fingerprint, the content and the crop. So an entry is never stale and never
updated; any change leads to another key.
"""

import contextlib
import hashlib
import os
import time
import uuid
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from foretune.choices.model import MODEL_SUFFIXES
from foretune.core.errors import UserError
from foretune.core.input_files import RefusedFile, open_input, parse_json, read_opened
from foretune.data.memo import Memo, stamp

Entry = dict[str, Tensor]
P = TypeVar("P")

_DIGEST_BYTES = 20
_CHECKSUM = "checksum"
_LENGTH_BYTES = 8
# None of our headers is nearly as large; a larger one means a damaged file.
_MOST_HEADER_BYTES = 1_000_000
_MOST_ENTRY_BYTES = 2**40
# What damaged or hostile content does to a reader.
_DAMAGED = (SafetensorError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError)
_UNFINISHED = "unfinished"
_UNFINISHED_IS_STALE_AFTER_S = 86_400


class MissingEntry(UserError):
    """Raised if an entry that a run needs is missing."""


class DamagedEntry(UserError):
    """Raised if an entry's content is not what was written; the entry is removed."""


class TensorCache:
    """Entries of named tensors by key, one safetensors file each, in two levels of folders.

    `has` only checks the file's length, which is what a machine crash damages; `get` verifies a checksum. A damaged
    entry is removed when it is found, so that it is made again the next time the cache is filled. Concurrent writers
    are safe: each writes its own file and renames it, and all write the same content.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @staticmethod
    def key(*parts: str) -> str:
        """Returns the key of an entry that depends on these parts. Length prefixes avoid collisions."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"entry")
        for part in parts:
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded)
        return digest.hexdigest()

    def path(self, key: str) -> Path:
        """Returns the path of an entry, whether it exists or not."""
        return self.directory / key[:2] / key[2:4] / f"{key}.safetensors"

    def has(self, key: str) -> bool:
        """Whether an entry of full length exists. Fast: does not read its content."""
        try:
            with open_input(self.path(key), _MOST_ENTRY_BYTES, within=self.directory) as file:
                return _is_of_full_length(file)
        except (OSError, RefusedFile):
            return False

    def get(self, key: str) -> Entry:
        """Returns the tensors of an entry, verified by checksum."""
        return self._read(key)[0]

    def content(self, key: str) -> bytes:
        """Returns the file of an entry, verified by checksum."""
        return self._read(key)[1]

    def _read(self, key: str) -> tuple[Entry, bytes]:
        path = self.path(key)
        data = b""
        try:
            with open_input(path, _MOST_ENTRY_BYTES, within=self.directory) as file:
                tensors = None
                if _is_of_full_length(file):
                    file.seek(0)
                    data = read_opened(file)
                    tensors = read_entry(data)
        except FileNotFoundError as error:
            raise MissingEntry(
                f"The cache in {self.directory} has no entry {key}. Start the run again to recreate it."
            ) from error
        except RefusedFile:
            if path.is_dir():
                raise
            tensors = None
        if tensors is None:
            path.unlink(missing_ok=True)
            raise DamagedEntry(
                f"The cache entry {path} was damaged and is removed. Start the run again to recreate it."
            )
        return tensors, data

    def put(self, key: str, tensors: Entry) -> None:
        """Stores an entry atomically. No fsync: a truncated file is detected by its length or checksum."""
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        data = safetensors.save(stored, metadata={_CHECKSUM: _checksum(stored)})
        # One folder for unfinished files, on the same file system, so that the files of killed writers can be found.
        unfinished = self.directory / _UNFINISHED / uuid.uuid4().hex
        path = self.path(key)
        try:
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("xb") as file:
                file.write(data)
            unfinished.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise UserError(
                f"The cache in {self.directory} cannot be written ({error.strerror}). Make room or give "
                "permission, or set data.cache_dir to another folder; what is already encoded is kept."
            ) from error

    def remove_stale(self) -> int:
        """Removes unfinished files of writers that were killed more than a day ago; returns their number."""
        oldest_s = time.time() - _UNFINISHED_IS_STALE_AFTER_S
        folder = self.directory / _UNFINISHED
        stale = [file for file in folder.iterdir() if _changed_s(file) < oldest_s] if folder.is_dir() else []
        for file in stale:
            file.unlink(missing_ok=True)
        return len(stale)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheJob(Generic[P]):
    """One entry to make."""

    key: str
    group: Hashable
    """Jobs with equal groups can be encoded in one batch: for instance images of one shape."""
    payload: P
    """The encoder's input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FillReport:
    """The result of filling a cache; each key is counted once."""

    num_encoded: int
    num_reused: int


def fill(
    cache: TensorCache,
    jobs: Sequence[CacheJob[P]],
    encode_batch: Callable[[Sequence[CacheJob[P]]], Sequence[Entry]],
    batch_size: int,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    verify: bool = False,
) -> FillReport:
    """Makes every missing entry; after an interruption it continues where it stopped.

    `verify` reads existing entries and replaces damaged ones; without it only truncated ones are detected.
    `on_progress` is called with the number of entries made so far and the total.
    """
    cache.remove_stale()
    by_key = {job.key: job for job in jobs}
    is_there = cache.has if not verify else _verified(cache)
    groups: dict[Hashable, list[CacheJob[P]]] = {}
    for job in by_key.values():
        if not is_there(job.key):
            groups.setdefault(job.group, []).append(job)
    num_missing = sum(map(len, groups.values()))
    num_reused = len(by_key) - num_missing
    num_done = num_reused
    if on_progress is not None:
        on_progress(num_done, len(by_key))
    for group in groups.values():
        for start in range(0, len(group), batch_size):
            batch = group[start : start + batch_size]
            entries = encode_batch(batch)
            assert len(entries) == len(batch), f"{len(entries)} entries were made of {len(batch)} jobs"
            for job, entry in zip(batch, entries, strict=True):
                cache.put(job.key, entry)
            num_done += len(batch)
            if on_progress is not None:
                on_progress(num_done, len(by_key))
    return FillReport(num_encoded=num_missing, num_reused=num_reused)


def component_fingerprint(folder: Path, cache_dir: Path | None = None) -> str:
    """Returns the hash of a model component's configuration, weights and tokenizer files, independent of its path.

    With `cache_dir` it is stored there until a file's size or modification time changes, so that a large encoder is
    read once.
    """
    files = sorted(
        (file for file in folder.rglob("*") if file.suffix in MODEL_SUFFIXES and file.is_file()),
        key=lambda file: file.relative_to(folder).as_posix(),
    )
    if not files:
        raise UserError(f"{folder} holds no model: it has no config.json and no safetensors. Download it again.")
    names = [file.relative_to(folder).as_posix() for file in files]
    memo = Memo(cache_dir / "components.json" if cache_dir else None)
    now, memo_name = stamp(files), "\n".join([str(folder.resolve()), *names])
    known = memo.recall(memo_name, now)
    if isinstance(known, str):
        return known
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"component")
    for name, file in zip(names, files, strict=True):
        with file.open("rb") as content:
            file_digest = hashlib.file_digest(content, hashlib.blake2b).digest()
        digest.update(len(name.encode()).to_bytes(_LENGTH_BYTES, "little") + name.encode() + file_digest)
    memo.store(memo_name, now, digest.hexdigest())
    memo.save()
    return digest.hexdigest()


def _verified(cache: TensorCache) -> Callable[[str], bool]:
    def is_whole(key: str) -> bool:
        try:
            cache.get(key)
        except (MissingEntry, DamagedEntry):
            return False
        return True

    return is_whole


def _checksum(tensors: Entry) -> str:
    """Returns a CRC over names, dtypes, shapes and content: against damage, not malice, and three times faster."""
    running = 0
    for name, tensor in sorted(tensors.items()):
        running = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode(), running)
        running = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, running)
    return f"{running:08x}"


def _is_of_full_length(file: BinaryIO) -> bool:
    """Whether an open entry has as many bytes as its header says; leaves the position behind the header."""
    try:
        header, body_start = _header(file.read(_LENGTH_BYTES), file.read)
        return os.fstat(file.fileno()).st_size == body_start + _body_bytes(header)
    except _DAMAGED:
        return False


def read_entry(data: bytes) -> Entry | None:
    """Returns the tensors of an entry's file; None where they are not what was written."""
    try:
        tensors: Entry = safetensors.load(data)
        header, _ = _header(data[:_LENGTH_BYTES], lambda size: data[_LENGTH_BYTES : _LENGTH_BYTES + size])
        is_whole = header.get("__metadata__", {}).get(_CHECKSUM) == _checksum(tensors)
    except _DAMAGED:
        return None
    return tensors if is_whole else None


def _header(length: bytes, read: Callable[[int], bytes]) -> tuple[dict[str, Any], int]:
    """Returns the header of a safetensors file and the offset of the tensors; raises ValueError if it is invalid."""
    header_bytes = int.from_bytes(length, "little")
    if len(length) != _LENGTH_BYTES or header_bytes > _MOST_HEADER_BYTES:
        raise ValueError("no header")
    header = parse_json(read(header_bytes))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header, _LENGTH_BYTES + header_bytes


def _body_bytes(header: dict[str, Any]) -> int:
    ends: list[int] = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return max(ends, default=0)


def _changed_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        # Its writer has just renamed it.
        return float("inf")
