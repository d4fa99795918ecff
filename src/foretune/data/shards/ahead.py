"""Downloads the shards of the next steps while the current ones are trained on."""

import threading
from collections.abc import Iterator
from types import TracebackType

from foretune.core.errors import UserError
from foretune.data.shards.cache import CachedFile, CachedStore, StoppedEarly
from foretune.data.shards.layout import Manifest
from foretune.data.window_order import WindowOrder

_NUM_THREADS = 4
_LOOK_AGAIN_S = 0.5
"""After this, shards that another process was downloading are looked for again."""


class ReadAhead:
    """Keeps the shards of the current window of steps and of those that follow in the cache, as many as it holds.

    Each process of a run has one; those of a machine share the cache, and each shard is downloaded by one of them.
    A sample whose shard has not arrived is read by itself, so training starts at once. A shard that cannot be read in
    all attempts ends the run with the error that names it.
    """

    def __init__(
        self,
        order: WindowOrder,
        store: CachedStore,
        manifest: Manifest,
        *,
        micros_per_step: int,
        reads_samples: bool,
        num_threads: int = _NUM_THREADS,
    ) -> None:
        """`reads_samples`: whether the shards themselves are needed; on cached latents only their indexes are."""
        self._order, self._store, self._manifest = order, store, manifest
        self._micros_per_step, self._reads_samples = micros_per_step, reads_samples
        self._changed = threading.Condition()
        self._window: tuple[int, int] | None = None
        self._wanted: list[CachedFile] = []
        self._begun: set[str] = set()
        self._failure: UserError | None = None
        self._is_stopped = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(num_threads)]

    def reached(self, micro_index: int) -> None:
        """Called before each forward pass; raises what went wrong in the background."""
        if self._failure is not None:
            raise self._failure
        window = self._order.window_of(micro_index // self._micros_per_step)
        if window == self._window:
            return
        wanted = list(self._files(*window))
        self._store.cache.use(frozenset(file.checksum for file in wanted))
        with self._changed:
            self._window, self._wanted = window, wanted
            self._changed.notify_all()

    def __enter__(self) -> "ReadAhead":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _files(self, epoch: int, window: int) -> Iterator[CachedFile]:
        """Yields what is needed from a window on, until the cache is full or everything is in it."""
        left_bytes = self._store.cache.max_bytes
        seen: set[int] = set()
        for shards in self._order.windows_from(epoch, window):
            if seen.issuperset(shards):
                return
            for shard in shards:
                entry = self._manifest.shards[shard]
                names = (entry.index_name, *((entry.name,) if self._reads_samples else ()))
                files = [self._store.file(name) for name in names if shard not in seen]
                left_bytes -= sum(file.num_bytes for file in files)
                if left_bytes < 0:
                    return
                seen.add(shard)
                yield from files

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_stopped or self._failure is not None:
                    return
                file = self._next()
                if file is None:
                    self._changed.wait(_LOOK_AGAIN_S)
                    continue
                self._begun.add(file.checksum)
            try:
                self._store.cache.fetch(self._store.store, file, lambda: self._is_stopped)
            except StoppedEarly:
                return
            except UserError as failure:
                self._failure = failure
            finally:
                with self._changed:
                    self._begun.discard(file.checksum)

    def _next(self) -> CachedFile | None:
        cache = self._store.cache
        return next(
            (file for file in self._wanted if file.checksum not in self._begun and not cache.has(file.checksum)), None
        )
