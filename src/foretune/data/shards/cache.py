"""Shards from an address, kept on the local disk up to a size: one download serves all processes of a machine."""

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.data.shards.layout import DIGEST_BYTES, Manifest
from foretune.data.shards.retrying import Retry, ShardFault
from foretune.data.shards.stores import ShardStore

_UNFINISHED, _LOCK = ".part", ".lock"
_UNFINISHED_IS_STALE_AFTER_S = 86_400
_BLOCK_BYTES = 8 * 2**20
_IN_A_ROW = 8
"""Reads of one shard in a row after which it is downloaded: whoever reads through a shard will read the rest."""


class StoppedEarly(Exception):
    """A download that nobody waits for any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedFile:
    """A file of a set, as the cache knows it: equal content is equal, whatever set it belongs to."""

    name: str
    checksum: str
    num_bytes: int


@dataclass
class ShardCache:
    """Files by checksum in one folder; those that were not needed for longest are removed first."""

    folder: Path
    max_bytes: int
    """0 keeps nothing."""
    retry: Retry = field(default_factory=Retry)
    protected: frozenset[str] = frozenset()
    """Checksums of what is needed now, which makes no room for others."""

    def path(self, checksum: str) -> Path:
        return self.folder / checksum

    def has(self, checksum: str) -> bool:
        return bool(self.max_bytes) and self.path(checksum).exists()

    def read(self, file: CachedFile, start: int, num_bytes: int) -> bytes | None:
        """Returns a range of a file; None if it is not in the cache, or was removed by another process just now."""
        if not self.max_bytes:
            return None
        try:
            with self.path(file.checksum).open("rb", buffering=0) as cached:
                cached.seek(start)
                data = cached.read(num_bytes)
        except FileNotFoundError:
            return None
        if len(data) != num_bytes:
            self.drop(file.checksum)
            return None
        return data

    def drop(self, checksum: str) -> None:
        self.path(checksum).unlink(missing_ok=True)

    def use(self, checksums: frozenset[str]) -> None:
        """Notes what is needed now and soon: it is removed last."""
        self.protected = checksums
        for checksum in checksums:
            with suppress(OSError):
                os.utime(self.path(checksum))

    def fetch(self, store: ShardStore, file: CachedFile, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        """Downloads a file and verifies it; returns whether it is in the cache then.

        It is not if there is no room for it, or if another process downloads it right now.
        """
        if self.has(file.checksum):
            return True
        with self._claimed(file.checksum) as is_ours:
            if not is_ours:
                return False
            # Another process may have finished it between the two questions.
            return self.has(file.checksum) or self._download(store, file, is_stopped)

    def held_bytes(self) -> int:
        """Returns the size of all files, unfinished ones included. None is added or renamed meanwhile."""
        with self._locked("room", waits=True):
            return sum(num_bytes for _, num_bytes, _ in self._files())

    def _download(self, store: ShardStore, file: CachedFile, is_stopped: Callable[[], bool]) -> bool:
        unfinished = self.folder / f"{uuid.uuid4().hex}{_UNFINISHED}"
        try:
            if not self._reserve(unfinished, file.num_bytes):
                return False
            with unfinished.open("r+b") as target:

                def attempt() -> None:
                    target.seek(0)
                    self._copy(store, file, target, is_stopped)

                self.retry.call(f"The shard {store.where(file.name)}", attempt)
            # Who lists the files meanwhile would count both names.
            with self._locked("room", waits=True):
                unfinished.replace(self.path(file.checksum))
        except (ShardFault, StoppedEarly):
            raise
        except OSError as error:
            raise UserError(
                f"The cache of shards in {self.folder} cannot be written ({error.strerror or error}). Make room, lower "
                "data.shard_cache_gib, or set data.cache_dir to another folder."
            ) from error
        finally:
            with suppress(OSError):
                unfinished.unlink()
        return True

    @staticmethod
    def _copy(store: ShardStore, file: CachedFile, target: Any, is_stopped: Callable[[], bool]) -> None:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for start in range(0, file.num_bytes, _BLOCK_BYTES):
            if is_stopped():
                raise StoppedEarly
            data = store.read(file.name, start, min(_BLOCK_BYTES, file.num_bytes - start), file.num_bytes)
            digest.update(data)
            target.write(data)
        if digest.hexdigest() != file.checksum:
            raise ShardFault("its content differs from its checksum")

    def _reserve(self, unfinished: Path, num_bytes: int) -> bool:
        """Makes room and takes it with an empty file of the size. Returns False if there is no room.

        One download at a time: two that both saw the same room would exceed the limit.
        """
        with self._locked("room", waits=True):
            if not self._make_room(num_bytes):
                return False
            with unfinished.open("xb") as target:
                target.truncate(num_bytes)
        return True

    def _make_room(self, num_bytes: int) -> bool:
        """Removes the oldest files until there is room; False if what is needed now leaves none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = sorted(self._files())
        held = sum(size for _, size, _ in files)
        stale_s = time.time() - _UNFINISHED_IS_STALE_AFTER_S
        for changed_s, size, path in files:
            is_stale = path.suffix == _UNFINISHED and changed_s < stale_s
            if held + num_bytes <= self.max_bytes and not is_stale:
                break
            if is_stale or (path.suffix != _UNFINISHED and path.name not in self.protected):
                path.unlink(missing_ok=True)
                held -= size
        return held + num_bytes <= self.max_bytes

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        for entry in os.scandir(self.folder) if self.folder.is_dir() else ():
            if not entry.name.endswith(_LOCK):
                with suppress(FileNotFoundError):
                    stat = entry.stat()
                    found.append((stat.st_mtime, stat.st_size, Path(entry.path)))
        return found

    @contextmanager
    def _claimed(self, checksum: str) -> Iterator[bool]:
        """Whether this process is the one to download a file."""
        with self._locked(checksum, waits=False) as is_ours:
            try:
                yield is_ours
            finally:
                if is_ours:
                    (self.folder / f"{checksum}{_LOCK}").unlink(missing_ok=True)

    @contextmanager
    def _locked(self, name: str, *, waits: bool) -> Iterator[bool]:
        """Holds a lock that ends with the process; yields whether it was free."""
        try:
            import fcntl
        except ModuleNotFoundError:
            # Without locks, two processes may download the same and exceed the limit together: slower and as correct.
            yield True
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / f"{name}{_LOCK}", os.O_RDWR | os.O_CREAT, 0o600)
        is_free = True
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
            yield is_free
        finally:
            os.close(descriptor)


class CachedStore:
    """A store whose shards are read from the cache where they are in it, and by a range request where not."""

    def __init__(self, store: ShardStore, cache: ShardCache, manifest: Manifest) -> None:
        self.store, self.cache = store, cache
        self._files = {shard.name: CachedFile(name=shard.name, checksum=shard.checksum, num_bytes=shard.num_bytes)
                       for shard in manifest.shards}  # fmt: skip
        self._files |= {
            shard.index_name: CachedFile(
                name=shard.index_name, checksum=shard.index_checksum, num_bytes=shard.index_bytes
            )
            for shard in manifest.shards
        }
        self._last_missed, self._num_missed = "", 0

    def file(self, name: str) -> CachedFile:
        """Returns what the cache knows a shard or an index by."""
        return self._files[name]

    def where(self, name: str = "") -> str:
        return self.store.where(name)

    def read(self, name: str, start: int, num_bytes: int, file_bytes: int) -> bytes:
        file = self._files.get(name)
        if file is None:
            return self.store.read(name, start, num_bytes, file_bytes)
        cached = self.cache.read(file, start, num_bytes)
        if cached is None and self._is_worth_keeping(name, is_whole=num_bytes == file_bytes):
            self.cache.fetch(self.store, file)
            cached = self.cache.read(file, start, num_bytes)
        return self.store.read(name, start, num_bytes, file_bytes) if cached is None else cached

    def forget(self, name: str) -> None:
        if name in self._files:
            self.cache.drop(self._files[name].checksum)
        self.store.forget(name)

    def read_small(self, name: str, most_bytes: int) -> bytes | None:
        return self.store.read_small(name, most_bytes)

    def num_bytes(self, name: str) -> int | None:
        return self.store.num_bytes(name)

    def names(self) -> list[str]:
        return self.store.names()

    def write(self, name: str, data: bytes) -> None:
        self.store.write(name, data)

    def upload(self, local: Path, name: str) -> None:
        self.store.upload(local, name)

    def remove(self, name: str) -> None:
        self.store.remove(name)

    def _is_worth_keeping(self, name: str, *, is_whole: bool) -> bool:
        """Whether a file is downloaded now. Training reads ahead (`ahead`) and jumps between shards; this is for who
        reads one from its start to its end, such as the encoder that fills the latent cache.
        """
        if not self.cache.max_bytes:
            return False
        self._num_missed = self._num_missed + 1 if name == self._last_missed else 1
        self._last_missed = name
        return is_whole or self._num_missed >= _IN_A_ROW
