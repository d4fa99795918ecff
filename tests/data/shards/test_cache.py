"""The cache of shards on the local disk: two downloads at once share its limit."""

import hashlib
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretune.data.shards.cache import CachedFile, ShardCache
from foretune.data.shards.layout import DIGEST_BYTES

MOST_WAIT_S = 0.5
"""Where one waits for the other, as it should, this passes in vain: a busy machine cannot make the test fail."""
CONTENTS = {"a": b"a" * 60, "b": b"b" * 60}


class InMemory:
    """A store of two files."""

    def where(self, name: str = "") -> str:
        return name

    def read(self, name: str, start: int, num_bytes: int, file_bytes: int) -> bytes:
        return CONTENTS[name][start : start + num_bytes]


class Meeting(ShardCache):
    """A cache in which two downloads look for room at the same time, if it lets them."""

    def __init__(self, folder: Path, max_bytes: int, protected: frozenset[str]) -> None:
        super().__init__(folder, max_bytes, protected=protected)
        self.both = threading.Barrier(2, timeout=MOST_WAIT_S)

    def _make_room(self, num_bytes: int) -> bool:
        has_room = super()._make_room(num_bytes)
        with suppress(threading.BrokenBarrierError):
            self.both.wait()
        return has_room


def cached_file(name: str) -> CachedFile:
    checksum = hashlib.blake2b(CONTENTS[name], digest_size=DIGEST_BYTES).hexdigest()
    return CachedFile(name=name, checksum=checksum, num_bytes=len(CONTENTS[name]))


def test_two_downloads_at_once_keep_to_the_limit(tmp_path: Path) -> None:
    files = [cached_file(name) for name in CONTENTS]
    cache = Meeting(tmp_path, 100, protected=frozenset(file.checksum for file in files))
    store: Any = InMemory()
    threads = [threading.Thread(target=cache.fetch, args=(store, file)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cache.has(file.checksum) for file in files].count(True) == 1
    assert cache.held_bytes() == 60


def test_a_second_download_of_a_file_leaves_it_to_the_first(tmp_path: Path) -> None:
    file = cached_file("a")
    cache = ShardCache(tmp_path, 100)
    store: Any = InMemory()
    with cache._claimed(file.checksum) as is_ours:
        assert is_ours
        assert not cache.fetch(store, file)
    assert cache.fetch(store, file)
    assert cache.read(file, 1, 2) == b"aa"
